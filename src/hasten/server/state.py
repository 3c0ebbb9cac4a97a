"""Everything the routes share, made once at start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from hasten.config import EngineConfig, ServerConfig
from hasten.engine.admission import Limits, resolve_sampling
from hasten.engine.executor import ExecutorInfo
from hasten.errors import EngineStopped, UnknownModel
from hasten.request import SamplingParams
from hasten.server.client import EngineClient
from hasten.server.explain import LedgerRing
from hasten.server.metrics import Metrics
from hasten.server.quoting import cut
from hasten.tokenizer.tokenizer import Tokenizer


@dataclass(slots=True)
class ServerState:
    """One served model and its engine.

    `model_names` are all names clients may use, the first one is shown. `sampling_defaults` are the model's own.
    `chat_template` replaces the model's. `is_draining` is set once, by shutdown.
    `reasons` say why the settings of `engine_config` that can be automatic are what they are.
    """

    client: EngineClient
    tokenizer: Tokenizer
    info: ExecutorInfo
    model_names: tuple[str, ...]
    engine_config: EngineConfig
    server_config: ServerConfig
    metrics: Metrics
    reasons: Mapping[str, str] = field(default_factory=dict)
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    chat_template: str | None = None
    api_keys: tuple[str, ...] = ()
    ledgers: LedgerRing = field(default_factory=LedgerRing)
    created_s: int = field(default_factory=lambda: int(time.time()))
    is_draining: bool = False
    _longest_token_bytes: int = 0

    @property
    def engine_error(self) -> str | None:
        """Why the engine has failed, if it has."""
        return self.client.stats().failed

    @property
    def limits(self) -> Limits:
        return Limits.of(self.info)

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    def check_model(self, name: str | None) -> str:
        """`name`, when it is served. Raises UnknownModel naming those that are."""
        if name in self.model_names:
            assert name is not None
            return name
        served = ", ".join(repr(served) for served in self.model_names)
        what = "the field model is missing" if name is None else f"the model {cut(name)!r} is not served"
        raise UnknownModel(f"{what}: this server has {served}")

    def resolve(self, sampling: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """`sampling` with max_tokens cut to what fits after the prompt."""
        return resolve_sampling(sampling, num_prompt_tokens=num_prompt_tokens, limits=self.limits)

    def longest_token_bytes(self) -> int:
        """Bytes of the longest token of the vocabulary. Found when first asked for: it walks the vocabulary."""
        if not self._longest_token_bytes:
            lengths = (len(self.tokenizer.token_bytes(token_id)) for token_id in range(self.tokenizer.vocab_size))
            self._longest_token_bytes = max(lengths, default=1)
        return self._longest_token_bytes

    def check_accepting(self) -> None:
        """Raises EngineStopped once shutdown has begun, or the engine has failed."""
        engine_error = self.engine_error
        if engine_error is not None:
            raise EngineStopped(engine_error)
        if self.is_draining:
            raise EngineStopped("the server is shutting down and takes no new requests: try again later, or elsewhere")
