"""The native executor: hands plans to csrc/model and its answers back. Policy and arithmetic are elsewhere."""

from __future__ import annotations

import threading
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import hasten._kernels as _kernels
from hasten.engine.executor import BadPlan, ExecutorInfo, make_info
from hasten.errors import DoesNotFit, EngineStopped, Unsupported, UsageError
from hasten.kv_store import KvLayout, KvStoreFormat
from hasten.models.spec import EMBED, FINAL_NORM, HEAD, LAYER_TENSORS, ModelSpec, layer_tensor
from hasten.quant import FORMATS
from hasten.request import SamplingParams, TokenLogprobs
from hasten.scheduler.plan import ChunkResult, StepPlan, StepResult
from hasten.weights.checkpoint import Checkpoint

__all__ = ["NUMERICS_VERSION", "NativeExecutor", "scratch_bytes", "weight_bytes"]

NUMERICS_VERSION = 1  # raised whenever the same file may give other bits than before


def weight_bytes(checkpoint: Checkpoint) -> int:
    """Bytes the packed weights will take. Raises Unsupported."""
    try:
        return int(_kernels.model_weight_bytes(_tensors(checkpoint)))
    except ValueError as error:
        raise Unsupported(f"{checkpoint.path}: {error}") from None


def scratch_bytes(
    spec: ModelSpec,
    *,
    max_model_len: int | None = None,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    threads: int,
    kv_format: str,
) -> int:
    """Bytes of working memory for the widest step, at the longest context where no other is given. Raises Unsupported."""
    length = min(max_model_len or spec.max_position, spec.max_position)
    limits = _limits(1, length, max_num_batched_tokens, max_num_seqs, kv_format)
    try:
        return int(_kernels.model_scratch_bytes(_config(spec), limits, threads))
    except ValueError as error:
        raise Unsupported(str(error)) from None


class NativeExecutor:
    """Implements engine.executor.Executor.

    Raises: Unsupported (the model has a shape or format the kernels cannot run), UsageError (isa or kv_format), DoesNotFit;
        BadPlan from submit when a plan contradicts what the executor knows, and then nothing has changed.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_blocks: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        kv_format: str,
        isa: str = "auto",
        threads: int,
    ) -> None:
        spec = checkpoint.spec
        limits = _limits(num_blocks, max_model_len, max_num_batched_tokens, max_num_seqs, kv_format)
        layout = KvLayout(cast(KvStoreFormat, kv_format), spec.num_layers, spec.num_kv_heads, spec.head_dim)
        self._model: Any = _load(checkpoint, limits, _chosen_isa(isa), threads, num_blocks * layout.block_bytes)
        self._lock = threading.Lock()  # between cancel() from any thread and the end of the step it means
        self._running: NativeStep | None = None
        formats = _formats(checkpoint)
        self._info = make_info(
            layout,
            num_blocks=num_blocks,
            vocab_size=spec.vocab_size,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            weight_bytes=self._model.weight_bytes,
            scratch_bytes=self._model.scratch_bytes,
            profile=f"native {NUMERICS_VERSION} {checkpoint.fingerprint} {formats} kv={kv_format}",
            description={
                "executor": "native",
                "isa": self._model.isa,
                "threads": self._model.num_threads,
                "weights": formats,
                "kv": kv_format,
            },
        )

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    def submit(self, plan: StepPlan) -> NativeStep:
        """Check the plan, take in its delta and start computing; returns at once."""
        if self._model is None:
            raise EngineStopped("the executor is closed")
        if self._running is not None:
            raise BadPlan(f"step {plan.step_id} was submitted before the result of step {self._running.plan.step_id}")
        native_plan = _native_plan(plan)
        try:
            self._model.submit(native_plan)
        except ValueError as error:
            raise BadPlan(f"step {plan.step_id}: {error}") from None
        self._running = NativeStep(self, plan)
        return self._running

    def close(self) -> None:
        with self._lock:
            if self._running is not None and self._model is not None:
                self._model.cancel()
            # the memory goes when a result() that is still waiting has let go of it
            self._model = None

    def kv_bytes(self) -> npt.NDArray[np.uint8]:
        """All K/V as bytes, writable: block i is bytes [i · block_bytes, (i + 1) · block_bytes) of kv_store.py's layout."""
        blocks: npt.NDArray[np.uint8] = self._model.kv_bytes()[: self._info.kv_bytes]
        return blocks

    def finish(self, step: NativeStep) -> StepResult:
        """Wait for `step`; for NativeStep.result()."""
        model = self._model
        if model is None or self._running is not step:
            raise EngineStopped("the executor was closed while the step ran")
        output = model.result()
        with self._lock:
            self._running = None
        if output.cancelled:
            return StepResult(step.plan.step_id, (), output.compute_ms, cancelled=True)
        chunks = tuple(_chunk_result(chunk.request_id, out) for chunk, out in zip(step.plan.chunks, output.chunks, strict=True))
        return StepResult(step.plan.step_id, chunks, output.compute_ms)

    def cancel(self, step: NativeStep) -> None:
        """Stop `step` at the next phase border, if it still runs; for NativeStep.cancel()."""
        with self._lock:
            if self._running is step and self._model is not None:
                self._model.cancel()


class NativeStep:
    """A submitted step (engine.executor.StepHandle)."""

    def __init__(self, executor: NativeExecutor, plan: StepPlan) -> None:
        self.plan = plan
        self._executor = executor
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._executor.finish(self)
        return self._result

    def cancel(self) -> None:
        self._executor.cancel(self)


def _chosen_isa(isa: str) -> str:
    try:
        return str(_kernels.selected_isa(isa))
    except ValueError as error:
        raise UsageError(str(error)) from None


def _load(checkpoint: Checkpoint, limits: Any, isa: str, threads: int, kv_bytes: int) -> Any:
    try:
        return _kernels.Model(_config(checkpoint.spec), limits, _tensors(checkpoint), isa, threads)
    except ValueError as error:
        raise Unsupported(f"{checkpoint.path}: {error}") from None
    except RuntimeError as error:
        raise DoesNotFit(f"{error}: choose fewer --threads") from None
    except MemoryError as error:
        raise DoesNotFit(
            f"{error} (weights {weight_bytes(checkpoint)} bytes, KV {kv_bytes} bytes): "
            "free memory, or lower --memory or --max-model-len"
        ) from None


def _tensors(checkpoint: Checkpoint) -> list[tuple[str, str, int, int, Any]]:
    """(name, format, outputs, inputs, rows as uint8) in the order a step reads them."""
    tensors = []
    for name in _names(checkpoint.spec):
        raw = checkpoint.tensor(name)
        if len(raw.shape) == 1:
            norm = FORMATS[raw.format].dequantize(raw.data)
            tensors.append((name, "f32", 1, raw.shape[0], norm.view(np.uint8)))
        else:
            tensors.append((name, raw.format, raw.shape[0], raw.shape[1], raw.data))
    return tensors


def _names(spec: ModelSpec) -> list[str]:
    names = [layer_tensor(i, name) for i in range(spec.num_layers) for name in LAYER_TENSORS]
    return [*names, FINAL_NORM, EMBED] if spec.tied_head else [*names, FINAL_NORM, EMBED, HEAD]


def _formats(checkpoint: Checkpoint) -> str:
    """The formats of the matrices, for example "q4_1+q8_0"."""
    raws = (checkpoint.tensor(name) for name in _names(checkpoint.spec))
    return "+".join(sorted({raw.format for raw in raws if len(raw.shape) == 2}))


def _config(spec: ModelSpec) -> Any:
    config = _kernels.ModelConfig()
    for name in ("num_layers", "hidden_size", "intermediate_size", "num_q_heads", "num_kv_heads", "head_dim", "vocab_size"):
        setattr(config, name, getattr(spec, name))
    config.norm_eps = spec.norm_eps
    config.tied_head = spec.tied_head
    rope = _kernels.RopeConfig()
    for name in (
        "dim",
        "base",
        "interleaved",
        "scaling",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position",
    ):
        setattr(rope, name, getattr(spec.rope, name))
    rope.freq_factors = list(spec.rope.freq_factors)
    config.rope = rope
    return config


def _limits(num_blocks: int, max_model_len: int, max_num_batched_tokens: int, max_num_seqs: int, kv_format: str) -> Any:
    limits = _kernels.ModelLimits()
    limits.num_blocks = num_blocks
    limits.max_model_len = max_model_len
    limits.max_num_batched_tokens = max_num_batched_tokens
    limits.max_num_seqs = max_num_seqs
    try:
        limits.kv_format = kv_format
    except ValueError as error:
        raise UsageError(str(error)) from None
    return limits


def _native_plan(plan: StepPlan) -> Any:
    native = _kernels.Plan()
    if plan.finished:
        native.finished = list(plan.finished)
    for new in plan.new:
        native.add_request(new.request_id, _ids(new.request_id, new.prompt_token_ids), _sampling(new.sampling))
    for update in plan.block_tables:
        if update.block_ids.dtype != np.int32 or update.block_ids.ndim != 1:
            raise BadPlan(f"request {update.request_id}: block ids are {update.block_ids.dtype}, [n] int32 is needed")
        native.add_table(update.request_id, update.start, np.ascontiguousarray(update.block_ids))
    for chunk in plan.chunks:
        if chunk.draft_token_ids or chunk.adapter_id:
            raise BadPlan(f"request {chunk.request_id}: the native executor has no draft tokens and no adapters")
        native.add_chunk(chunk.request_id, chunk.start, chunk.num_tokens)
    return native


def _ids(request_id: int, token_ids: tuple[int, ...]) -> Any:
    try:
        return np.array(token_ids, dtype=np.int32)
    except OverflowError:
        raise BadPlan(f"request {request_id} has token ids outside the vocabulary") from None


def _sampling(params: SamplingParams) -> Any:
    native = _kernels.SamplingConfig()
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        setattr(native, name, getattr(params, name))
    native.seed = (params.seed or 0) % 2**64  # negative seeds: two's complement
    for name in ("max_tokens", "logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        setattr(native, name, -1 if value is None else value)
    native.logit_bias = list(params.logit_bias)
    return native


def _chunk_result(request_id: int, out: Any) -> ChunkResult:
    token = out.token
    token_ids = () if token < 0 else (token,)
    if not out.has_details:
        return ChunkResult(request_id, token_ids)
    if out.error:
        return ChunkResult(request_id, error=out.error)
    return ChunkResult(request_id, token_ids, _logprobs(out.logprobs), _logprobs(out.prompt_logprobs))


def _logprobs(entries: list[tuple[int, float, list[tuple[int, float]]]]) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token, logprob, tuple(top)) for token, logprob, top in entries)
