"""One request's logit edits on the host: biases and bans for as long as it holds its slot."""

from dataclasses import dataclass

import numpy as np

from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.sampling.layout import ALWAYS, LogitEdits

_FORCE = 1e9
"""Added to a logit, leaves the others no chance; a token that is banned stays so."""


@dataclass(frozen=True, eq=False)
class RowEdits:
    """What a slot's edits are filled with while the request holds it.

    Attributes:
        fixed: (token id, value, end) triples, values added to logits at positions below the end;
            minus infinity bans.
        allowed: int32 `[ceil(V / 32)]` bits of the allowed tokens, or None for all.
    """

    fixed: tuple[tuple[int, float, int], ...]
    allowed: np.ndarray | None

    def restrict(self, allowed: np.ndarray) -> None:
        """Clear the bits, int32 ``[at least ceil(V / 32)]``, of tokens that the request bans."""
        if self.allowed is not None:
            allowed[: len(self.allowed)] &= self.allowed

    def write(self, row: LogitEdits, more: TokenEdits) -> None:
        """Fill one row of NumPy arrays, of no edits so far, with all that applies now."""
        edits = [*self.fixed, *((token, -np.inf, ALWAYS) for token in sorted(more.banned))]
        if more.required is not None:
            edits.append((more.required, _FORCE, ALWAYS))
        for array, values in zip(row, zip(*edits, strict=True), strict=False):
            array[: len(edits)] = values
        if self.allowed is not None:
            row.allowed[:] = self.allowed
