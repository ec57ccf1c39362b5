"""What `LLM` and `AsyncLLM` tell of their engine."""

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.engine_handle import EngineHandle


class EngineFacts:
    """Properties of an engine; a subclass sets `_handle`."""

    _handle: EngineHandle

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
    def weight_version(self) -> int:
        """How often `update_params` has swapped the weights."""
        return self._handle.weight_version

    def get_default_sampling_params(self) -> SamplingParams:
        """What a call without sampling parameters uses, from `generation_config.json`; a copy."""
        return self._handle.loaded.default_params.clone()
