"""One request's logit edits on the host: biases and bans for good, and bans that follow tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.serving.sampling.layout import ALWAYS, LogitEdits


@dataclass(frozen=True, eq=False)
class RowEdits:
    """What a slot's edits are filled with while the request holds it.

    Attributes:
        fixed: (token id, value, end) triples, values added to logits at positions below the end;
            minus infinity bans.
        phrases: bad words of several tokens: the last is banned where the others were generated
            just before.
        allowed: int32 `[ceil(V / 32)]` bits of the allowed tokens, or None for all.
    """

    fixed: tuple[tuple[int, float, int], ...]
    phrases: tuple[tuple[int, ...], ...]
    allowed: np.ndarray | None

    def banned_after(self, output_token_ids: Sequence[int]) -> frozenset[int]:
        """The tokens that would complete a phrase after these."""
        return frozenset(
            last for *first, last in self.phrases if _ends_with(output_token_ids, first)
        )

    def allowed_of(self, allowed: np.ndarray) -> np.ndarray:
        """The bits of `allowed`, int32 ``[ceil(V / 32)]``, that the request allows anyway."""
        return allowed if self.allowed is None else allowed & self.allowed

    def write(self, row: LogitEdits, banned: frozenset[int]) -> None:
        """Fill one row of NumPy arrays, of no edits so far, with all that applies now."""
        edits = [*self.fixed, *((token, -np.inf, ALWAYS) for token in sorted(banned))]
        for array, values in zip(row, zip(*edits, strict=True), strict=False):
            array[: len(edits)] = values
        if self.allowed is not None:
            row.allowed[:] = self.allowed


def _ends_with(tokens: Sequence[int], end: list[int]) -> bool:
    return list(tokens[-len(end) :]) == end
