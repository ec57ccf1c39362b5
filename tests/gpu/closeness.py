"""How near an engine's distributions are to Hugging Face's in float32, as KL divergence.

Hugging Face rounds its logits to bfloat16 and the engine does not, which alone would make the
engine many times nearer. The bound is therefore Hugging Face's divergence with logits kept in
float32: what is compared is everything before them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

from tests.gpu.hugging_face import EXACT, ROUNDED, SHARP, HuggingFace
from tests.gpu.internals import num_preemptions
from tests.gpu.recorded_logits import sample_recorded

LIMIT = 2.0
"""Most that the engine's divergence in bfloat16 may be of Hugging Face's own."""


@dataclass(frozen=True)
class Closeness:
    """Mean KL divergence from Hugging Face in float32, in nats a token, over the same contexts.

    Attributes:
        engine: of the engine in bfloat16.
        hugging_face: of Hugging Face in bfloat16 up to the last hidden state.
        with_rounded_logits: of Hugging Face in bfloat16 to the end.
        num_tokens: distributions compared.
        backend: the engine's attention implementation.
        num_preemptions: of the engine while it sampled.
    """

    engine: float
    hugging_face: float
    with_rounded_logits: float
    num_tokens: int
    backend: str
    num_preemptions: int

    def __str__(self) -> str:
        return (
            f"{self.backend}, {self.num_tokens} tokens: KL of the engine {self.engine:.3g}, of "
            f"Hugging Face {self.hugging_face:.3g} ({self.with_rounded_logits:.3g} if it rounds "
            "its logits)"
        )

    def check(self) -> None:
        """Fail unless the engine is as near as `LIMIT` allows."""
        assert 0 < self.engine <= LIMIT * self.hugging_face, str(self)


def measure(
    hugging_face: HuggingFace,
    directory: Path,
    prompts: list[list[int]],
    num_outputs: int,
    **engine: Any,
) -> Closeness:
    """Sample on an engine in bfloat16 and compare every distribution that was sampled from.

    Args:
        hugging_face: the other side.
        directory: a model that it can read, with the weights that `engine` names.
        prompts: token ids.
        num_outputs: tokens sampled after each prompt.
        engine: arguments of `LLM`.
    """
    llm, sequences, ours = sample_recorded(prompts, num_outputs, **engine)
    theirs = hugging_face.logits(directory, sequences, num_outputs)
    return Closeness(
        engine=mean_kl(theirs[EXACT], ours),
        hugging_face=mean_kl(theirs[EXACT], theirs[SHARP]),
        with_rounded_logits=mean_kl(theirs[EXACT], theirs[ROUNDED]),
        num_tokens=num_outputs * len(prompts),
        backend=llm.report.attention_backend,
        num_preemptions=num_preemptions(llm),
    )


def mean_kl(expected: list[np.ndarray], actual: list[np.ndarray]) -> float:
    """Mean over all rows of sum p (log p - log q); both are lists of logits ``[n, V]``."""
    divergences = []
    for p_logits, q_logits in zip(expected, actual, strict=True):
        p = log_softmax(p_logits.astype(np.float64), axis=-1)
        q = log_softmax(q_logits.astype(np.float64), axis=-1)
        divergences.append((np.exp(p) * (p - q)).sum(-1))
    return float(np.mean(np.concatenate(divergences)))
