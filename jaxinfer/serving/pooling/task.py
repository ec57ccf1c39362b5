"""A task of pooling: prompts that are read once each, and the answer that their vectors give."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxinfer.errors import StepError
from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.new_request import NewRequest, Prompt

ONLY_POOLS = (
    "this engine was started with runner='pooling', which compiles nothing that generates or gives "
    "log-probabilities; start it with runner='generate'"
)
"""The error of calls that need more than vectors of prompts."""

POOLING_PARAMS = SamplingParams()
"""Of all requests that are pooled: nothing is sampled."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows of the head, by which vectors are multiplied for the logits of a few tokens.

    Attributes:
        rows: float32 ``[N, E]``.
        version: of the weights that they are from.
    """

    rows: np.ndarray
    version: int


NO_ROWS = HeadRows(np.zeros((0, 0), np.float32), 0)
"""For tasks that need vectors alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class PoolingTask[T]:
    """Prompts to read, and how an answer is made of the final hidden states of their last tokens.

    Attributes:
        prompts: checked prompts, behind which no token need fit.
        token_ids: the N tokens whose rows of the head the answer takes; empty for none.
        answer: from the prompts' outputs, in order, and these rows; raises `StepError` if one of
            the outputs failed.
    """

    prompts: Sequence[Prompt]
    token_ids: tuple[int, ...]
    answer: Callable[[Sequence[RequestOutput], HeadRows], T]

    def requests(self) -> list[NewRequest]:
        """A request for each prompt, whose one output comes at its end."""
        return [
            NewRequest(
                prompt=p, params=POOLING_PARAMS, kind="final", prefill_only=True, pooled=True
            )
            for p in self.prompts
        ]


def vector_of(output: RequestOutput) -> np.ndarray:
    """The vector float32 ``[E]`` in the last output of a request that was pooled.

    Raises:
        StepError: the request failed.
    """
    if output.error is not None or output.embedding is None:
        raise StepError(f"reading a prompt failed: {output.error}") from output.cause
    return np.asarray(output.embedding, np.float32)
