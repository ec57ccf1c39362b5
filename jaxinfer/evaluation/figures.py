"""The figures of an evaluation: each token's, and what they are over all texts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class TextFigures:
    """What was found for each token of a text but its first; ``[T - 1]``, in nats, float64.

    Attributes:
        nll: negative log-probability of the token, by the model.
        reference_nll: the same by the reference; None without one, as the next two.
        kl: KL(reference || model) of the distributions that predict the token.
        is_same_top: bool, whether both have the same most likely token.
    """

    nll: np.ndarray
    reference_nll: np.ndarray | None = None
    kl: np.ndarray | None = None
    is_same_top: np.ndarray | None = None

    def __post_init__(self) -> None:
        for values in (self.nll, self.reference_nll, self.kl):
            if values is not None and not np.isfinite(values).all():
                raise ValueError("logits are not finite; compute in another dtype")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model over texts, perhaps beside a reference.

    Without one its perplexity is known, and what compares both raises ValueError.

    Attributes:
        texts: the figures of each text, at least one.
        layer_errors: for each layer the norm of the difference of both residual streams behind it,
            over the norm of the reference's, of all tokens together; None where not compared.
    """

    texts: tuple[TextFigures, ...]
    layer_errors: tuple[float, ...] | None = None

    @property
    def num_tokens(self) -> int:
        """Predicted tokens: all but the first of each text."""
        return sum(len(text.nll) for text in self.texts)

    @property
    def perplexity(self) -> float:
        """Exponential of the mean negative log-probability of a token, by the model."""
        return _perplexity(self._of_all(lambda text: text.nll))

    @property
    def reference_perplexity(self) -> float:
        """The same by the reference."""
        return _perplexity(self._of_all(lambda text: text.reference_nll))

    @property
    def kl(self) -> np.ndarray:
        """KL(reference || model) of each token of all texts, in nats; float64."""
        return self._of_all(lambda text: text.kl)

    @property
    def same_top_share(self) -> float:
        """Share of tokens for which both models have the same most likely one."""
        return float(self._of_all(lambda text: text.is_same_top).mean())

    @property
    def has_reference(self) -> bool:
        """Whether a second model was run."""
        return self.texts[0].kl is not None

    def worst_texts(self, count: int) -> list[tuple[int, float, int]]:
        """Texts of the largest mean KL, the worst first.

        Returns:
            The index of each, its mean KL in nats, and the index in it of the token whose
            distribution differs most.
        """
        means = [(i, float(self._kl_of(i).mean())) for i in range(len(self.texts))]
        worst = sorted(means, key=lambda each: -each[1])[:count]
        return [(i, mean, int(self._kl_of(i).argmax()) + 1) for i, mean in worst]

    def _kl_of(self, index: int) -> np.ndarray:
        return _known(self.texts[index].kl)

    def _of_all(self, values: Callable[[TextFigures], np.ndarray | None]) -> np.ndarray:
        return np.concatenate([_known(values(text)) for text in self.texts])


def _known(values: np.ndarray | None) -> np.ndarray:
    if values is None:
        raise ValueError("there was no reference")
    return values


def _perplexity(nll: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(nll.mean()))
