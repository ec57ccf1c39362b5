"""The engine's interface to the HTTP server: the part of `AsyncLLM` that front ends have too."""

import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.engine.metrics import Metric
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.pooling.async_judge import AsyncJudge
from jaxinfer.serving.pooling.embedding_model import EmbeddingModel

if TYPE_CHECKING:  # its module imports JAX, which a front end does not load
    from jaxinfer.model.config import ModelConfig


class EngineClient(Protocol):
    """An engine in this process or in another one, for the tasks of one event loop."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """This process's own tokenizer; None if only token ids go in and out."""
        ...

    @property
    def model_config(self) -> "ModelConfig":
        """The model's shape; the HTTP server reads `vocab_size`, the width of the logits."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        ...

    @property
    def adapters(self) -> Sequence[str]:
        """The names of the loaded LoRA adapters, which requests may give as their model."""
        ...

    @property
    def embedding_model(self) -> EmbeddingModel:
        """What the model's files say of its vectors; ModelLoadError or ValueError if bad."""
        ...

    @property
    def judge(self) -> AsyncJudge:
        """Reads the head, for decisions and relevance; raises as `generate` does at the call."""
        ...

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of a request without sampling fields."""
        ...

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        prefill_only: bool = False,
        pooled: bool = False,
        answer: AnswerFormat | None = None,
        lora_request: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Complete one prompt. Closing the iteration, or cancelling its task, aborts the request.

        Args as of `AsyncLLM.generate`. The HTTP server gives `TokensPrompt`s, asks for outputs of
        kind DELTA or FINAL_ONLY, and makes the labels: clients' ids are never passed on.

        Raises:
            TypeError, ValueError: the request can't be run; at the call.
            QueueFullError: too many requests wait; at the call or before the first output.
            RuntimeError, JaxinferError: the engine has ended; at the call or in the iteration.
        """
        ...

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End the requests of these labels; each gets a last output, "abort"."""
        ...

    async def check_health(self) -> None:
        """Return if requests are taken; raise JaxinferError or RuntimeError if not."""
        ...

    async def get_metrics(self) -> list[Metric]:
        """The engine's counters."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache."""
        ...

    async def start_profile(self, directory: str | os.PathLike[str]) -> None:
        """Record a profile of host and devices; RuntimeError if a recording runs."""
        ...

    async def stop_profile(self) -> None:
        """End the recording and write it; RuntimeError if none runs."""
        ...
