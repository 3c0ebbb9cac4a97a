"""A short hash that tells model files apart without reading all of them."""

from __future__ import annotations

import hashlib

from hasten.weights.gguf import GgufFile

SAMPLE_BYTES = 4096  # a page; the demo model's 272 tensors then take 8 ms, reading all of them 150


def fingerprint(file: GgufFile) -> str:
    """16 hex digits over the header (all keys, names, shapes, formats, offsets) and a sample of every tensor.

    The sample is the first, the middle and the last SAMPLE_BYTES of the tensor's bytes, or all of them where it is not
    longer than that; so training, quantizing or fine-tuning shows, a change of single weights elsewhere does not.
    """
    digest = hashlib.blake2b(file.header(), digest_size=8)
    for name, info in file.tensors.items():
        data = memoryview(file.data(name).reshape(-1))  # type: ignore[arg-type]  # an array is a buffer
        digest.update(info.num_bytes.to_bytes(8, "little"))
        if len(data) <= 3 * SAMPLE_BYTES:
            digest.update(data)
            continue
        middle = (len(data) - SAMPLE_BYTES) // 2
        for start in (0, middle, len(data) - SAMPLE_BYTES):
            digest.update(data[start : start + SAMPLE_BYTES])
    return digest.hexdigest()
