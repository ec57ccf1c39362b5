"""Logits of a few tokens after a prompt: the whole head is never multiplied."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jaxinfer.errors import StepError
from jaxinfer.outputs import RequestOutput
from jaxinfer.serving.pooling.task import HeadRows, vector_of


@dataclasses.dataclass(frozen=True, slots=True)
class PromptLogits:
    """Logits of given tokens after a prompt, before any logits processor.

    Attributes:
        output: of the request that ran the prompt.
        logits: float64 ``[N]``, one for each token.
    """

    output: RequestOutput
    logits: np.ndarray


def prompt_logits(outputs: Sequence[RequestOutput], head: HeadRows) -> list[PromptLogits]:
    """Logits after each prompt of the tokens whose rows these are.

    Raises:
        StepError: a request failed, its logits are not finite, or the weights were swapped behind
            it.
    """
    return [PromptLogits(output, _logits(output, head)) for output in outputs]


def _logits(output: RequestOutput, head: HeadRows) -> np.ndarray:
    vector = vector_of(output)
    if output.weight_version != head.version:
        raise StepError(
            "the weights were swapped between a prompt and its logits; call again after "
            "update_params() has returned"
        )
    logits = head.rows.astype(np.float64) @ vector.astype(np.float64)
    if not np.isfinite(logits).all():
        raise StepError("logits are not finite: the head's weights are damaged")
    return logits
