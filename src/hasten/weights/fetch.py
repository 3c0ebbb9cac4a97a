"""Bring a model file into the models folder: whole, checked, or not at all.

Everything is written to a private folder beside its final place and renamed when it is complete and checked, so a kill at
any moment leaves at most a `.partial-…` folder, which the next fetch of that name removes. A lock file makes two fetches
of one name take turns; the second finds the file in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from hasten.errors import BadFile, ModelError, UsageError

GGUF_MAGIC = b"GGUF"
CHUNK_BYTES = 1 << 20
HTTP_TIMEOUT_S = 60.0  # without a single byte; the whole transfer may take as long as it takes

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all (None: unknown)


Check = Callable[[Path, str], None]  # file, what to call it in a message; raises ModelError for one that is not kept


def no_check(path: Path, source: str) -> None:
    """For files whose checksum is known."""


def no_progress(done: int, total: int | None) -> None:
    """For pipes and libraries: says nothing."""


@contextlib.contextmanager
def locked(models_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock of one name; the kernel lets go of it when the process dies, however it dies.

    Raises: ModelError if the folder cannot be made or written.
    """
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        lock = open(models_dir / f".{name}.lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise ModelError(f"cannot write to {models_dir}: {error.strerror}; HASTEN_HOME moves it") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def partial_folder(models_dir: Path, name: str) -> Iterator[Path]:
    """A private folder for the pieces of `name`, gone on exit; what a killed fetch left is removed first.

    Call it with the lock of `name` held.

    Raises: ModelError if the disk is full while the folder is in use.
    """
    prefix = f".partial-{name}-"
    for left_over in models_dir.glob(f"{_glob_literal(prefix)}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=models_dir))
    try:
        yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full(models_dir, None) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _glob_literal(text: str) -> str:
    return "".join(f"[{char}]" if char in "*?[" else char for char in text)


def disk_full(folder: Path, needed_bytes: int | None) -> ModelError:
    free = shutil.disk_usage(folder).free
    need = "" if needed_bytes is None else f" and {needed_bytes:,} are needed"
    return ModelError(f"no room in {folder}: {free:,} bytes are free{need}; free some, or set HASTEN_HOME to a larger disk")


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises: ModelError with both numbers, before the first byte is written."""
    if shutil.disk_usage(folder).free < needed_bytes:
        raise disk_full(folder, needed_bytes)


def copy_checked(
    chunks: Iterable[bytes],
    target: Path,
    *,
    source: str,
    expected_bytes: int | None,
    sha256: str | None,
    progress: Progress = no_progress,
) -> None:
    """Write `chunks` to the new file `target`, and compare length and checksum on the way.

    Args:
        source: where the bytes come from, for messages.
        sha256: lower-case hex digest the bytes must have, or None.
    Raises: BadFile with expected and found number; the file is removed before.
    """
    digest = hashlib.sha256()
    done = 0
    try:
        with open(target, "xb") as out:
            for chunk in chunks:
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                if expected_bytes is not None and done > expected_bytes:
                    break
                progress(done, expected_bytes)
            out.flush()
            os.fsync(out.fileno())
        if expected_bytes is not None and done != expected_bytes:
            found = f"more than {expected_bytes:,}" if done > expected_bytes else f"{done:,}"
            raise BadFile(f"{source} is {found} bytes, expected {expected_bytes:,}: nothing was kept, try again")
        if sha256 is not None and digest.hexdigest() != sha256.lower():
            raise BadFile(
                f"{source} has the wrong checksum: sha256 {digest.hexdigest()}, expected {sha256.lower()}; nothing was kept"
            )
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def read_chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def place(part: Path, final: Path) -> None:
    """Give a complete file its final name; the rename survives a power cut."""
    os.replace(part, final)
    folder = os.open(final.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def fetch_url(
    url: str,
    models_dir: Path,
    *,
    name: str | None = None,
    sha256: str | None = None,
    progress: Progress = no_progress,
    check: Check = no_check,
) -> Path:
    """Download one GGUF file over http or https.

    Args:
        name: file name in the models folder; None takes the last part of the URL's path.
        check: what the file must pass before it gets its final name.
    Returns: the file. One that is there already is kept as it is, after `sha256` was compared.
    Raises: UsageError for a URL without a file name; ModelError saying what the other side answered.
    """
    name = file_name(name if name is not None else urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1]))
    final = models_dir / name
    with locked(models_dir, name):
        if final.exists():
            if sha256 is not None:
                check_sha256(final, sha256)
            return final
        with partial_folder(models_dir, name) as folder:
            download(url, folder / name, sha256=sha256, progress=progress, magic=GGUF_MAGIC)
            check(folder / name, url)
            place(folder / name, final)
    return final


def file_name(name: str) -> str:
    """`name` if it can be a file of the models folder. Raises: UsageError."""
    if not name or "/" in name or "\0" in name or name.startswith("."):
        raise UsageError(f"{name!r} cannot be a file name in the models folder: give one with --name")
    return name


def download(url: str, target: Path, *, sha256: str | None, progress: Progress, magic: bytes = b"") -> None:
    """Stream `url` into the new file `target`.

    Args:
        magic: bytes the file must start with; a login page in place of a model is found at its first bytes.
    Raises: ModelError with status or network error; BadFile for a short body, a wrong start, a wrong checksum.
    """
    import httpx  # 0.25 s of import that only a download pays for

    timeout = httpx.Timeout(HTTP_TIMEOUT_S, connect=30.0)
    try:
        with httpx.stream(
            "GET", url, follow_redirects=True, timeout=timeout, headers={"accept-encoding": "identity"}
        ) as answer:
            if answer.status_code != 200:
                raise ModelError(f"{url} answered {answer.status_code} {answer.reason_phrase}")
            length = answer.headers.get("content-length", "")
            expected = int(length) if length.isdecimal() and "content-encoding" not in answer.headers else None
            if expected is not None:
                require_space(target.parent, expected)
            chunks = _check_magic(answer.iter_bytes(CHUNK_BYTES), magic, url)
            copy_checked(chunks, target, source=url, expected_bytes=expected, sha256=sha256, progress=progress)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ModelError(f"{url}: {str(error) or type(error).__name__}; nothing was kept, try again") from error


def _check_magic(chunks: Iterable[bytes], magic: bytes, source: str) -> Iterator[bytes]:
    first = True
    for chunk in chunks:
        if first and not chunk.startswith(magic):
            raise BadFile(f"{source} is not a GGUF file: it starts with {chunk[:16]!r}, expected {magic!r}")
        first = False
        yield chunk
    if first and magic:
        raise BadFile(f"{source} is empty, expected a GGUF file")


def check_sha256(path: Path, sha256: str) -> None:
    """Raises: BadFile with both digests."""
    with open(path, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256.lower():
        raise BadFile(f"{path} has the wrong checksum: sha256 {found}, expected {sha256.lower()}; delete it and pull again")


def copy_local(
    source: Path,
    models_dir: Path,
    *,
    name: str | None = None,
    link: bool = False,
    sha256: str | None = None,
    progress: Progress = no_progress,
    check: Check = no_check,
) -> Path:
    """Copy one GGUF file into the models folder, or with `link` register it by a symbolic link.

    Args:
        check: what the file must pass before it gets its final name.
    Raises: BadFile if it is none; ModelError if another file of that name is there or it cannot be read.
    """
    name = file_name(name if name is not None else source.name)
    final = models_dir / name
    with locked(models_dir, name), _open_model(source) as stream:
        if final.exists():
            if not final.samefile(source) and final.stat().st_size != source.stat().st_size:
                raise ModelError(f"{final} is there already and differs from {source}: choose another --name, or delete it")
            return final
        with partial_folder(models_dir, name) as folder:
            part = folder / name
            if link:
                if sha256 is not None:
                    check_sha256(source, sha256)
                part.symlink_to(source.resolve())
            else:
                size = source.stat().st_size
                require_space(folder, size)
                chunks = _check_magic(read_chunks(stream), GGUF_MAGIC, str(source))
                copy_checked(chunks, part, source=str(source), expected_bytes=size, sha256=sha256, progress=progress)
            check(part, str(source))
            place(part, final)
    return final


def _open_model(source: Path) -> BinaryIO:
    try:
        stream = open(source, "rb")  # noqa: SIM115 (the caller's with closes it)
    except OSError as error:
        raise ModelError(f"cannot read {source}: {error.strerror}") from error
    if stream.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
        stream.close()
        raise BadFile(f"{source} is not a GGUF file: it does not start with {GGUF_MAGIC!r}")
    stream.seek(0)
    return stream
