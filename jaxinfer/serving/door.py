"""What `LLM` and `AsyncLLM` share: the properties of an engine, its model, limits and counts."""

import functools
from typing import Any

from jaxinfer.checks import instead_of_vllm
from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.adapters import Adapters
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.pooling.embedding_model import EmbeddingModel, read_embedding_model
from jaxinfer.serving.weights import Weights
from jaxinfer.startup_report import StartupReport, StartUpTimes


class Door:
    """What is known of a running engine."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self.weights, self.lora = Weights(handle), Adapters(handle)

    def __getattr__(self, name: str) -> Any:
        """Say what to write in place of what only vLLM's class has."""
        if (instead := instead_of_vllm("methods").get(name)) is None:
            return object.__getattribute__(self, name)  # raises as before, from a property, too
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: {instead}")

    @property
    def engine_config(self) -> EngineConfig:
        """The arguments that the engine was made with."""
        return self._handle.config

    @property
    def model_config(self) -> ModelConfig:
        """The model's shape."""
        return self._handle.loaded.model_config

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self._handle.loaded.reader.max_model_len

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if only token ids go in and out."""
        return self._handle.loaded.tokenizer

    @property
    def embedding_model(self) -> EmbeddingModel:
        """What the model's files say of its vectors; read when it is first asked for.

        Raises:
            ModelLoadError, ValueError: as `read_embedding_model`.
        """
        return self._embedding_model

    @functools.cached_property
    def _embedding_model(self) -> EmbeddingModel:
        loaded, overrides = self._handle.loaded, self._handle.config.hf_overrides
        return read_embedding_model(loaded.directory, loaded.model_config.hidden_size, overrides)

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the loaded LoRA adapters."""
        return self._handle.arguments.adapters.names

    @property
    def weight_version(self) -> int:
        """How often `update_params` has swapped the weights."""
        return self.weights.version

    @property
    def report(self) -> StartupReport:
        """What the engine decided at start-up: blocks, attention backend and why."""
        return self._handle.loaded.report

    @property
    def start_up(self) -> StartUpTimes:
        """Where the time of the engine's start went."""
        return self._handle.loaded.start_up

    @property
    def num_kv_blocks(self) -> int:
        """Blocks of the KV cache, each replica's reserved block 0 included."""
        return self._handle.loaded.report.num_kv_blocks

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache on each device."""
        return self._handle.loaded.report.kv_bytes

    @property
    def num_compilations(self) -> int:
        """Programs that were compiled since this engine was made."""
        return self._handle.num_compilations

    @property
    def compile_seconds(self) -> float:
        """Seconds that steps have waited for programs to be compiled at their first use."""
        return self._handle.compile_seconds

    def get_default_sampling_params(self) -> SamplingParams:
        """The default sampling parameters, from `generation_config.json`; a copy."""
        return self._handle.loaded.default_params.clone()
