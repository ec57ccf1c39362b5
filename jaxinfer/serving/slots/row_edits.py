"""One request's logit edits on the host: biases and bans for good, and bans that follow tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxinfer.serving.sampling.layout import ALWAYS, LogitEdits
from jaxinfer.serving.slots.thinking_budget import ThinkingBudget

_FORCE = 1e9
"""Added to a logit, leaves the others no chance; a token that is banned stays so."""


@dataclass(frozen=True)
class LateEdits:
    """Edits that depend on the tokens so far.

    Attributes:
        banned: tokens that would complete a phrase.
        forced: the token that must come next; None for any.
    """

    banned: frozenset[int] = frozenset()
    forced: int | None = None


@dataclass(frozen=True, eq=False)
class RowEdits:
    """What a slot's edits are filled with while the request holds it.

    Attributes:
        fixed: (token id, value, end) triples, values added to logits at positions below the end;
            minus infinity bans.
        phrases: bad words of several tokens: the last is banned where the others were generated
            just before.
        allowed: int32 `[ceil(V / 32)]` bits of the allowed tokens, or None for all.
        thinking: ends the thinking; None leaves that to the model.
    """

    fixed: tuple[tuple[int, float, int], ...]
    phrases: tuple[tuple[int, ...], ...]
    allowed: np.ndarray | None
    thinking: ThinkingBudget | None = None

    @property
    def end_with_thinking(self) -> bool:
        """Whether none are left once a thinking is over but the masks of a grammar."""
        return not (self.fixed or self.phrases) and self.allowed is None

    @property
    def follow_tokens(self) -> bool:
        """Whether there are edits that depend on the tokens so far."""
        return bool(self.phrases) or self.thinking is not None

    def after(self, output_token_ids: Sequence[int]) -> LateEdits:
        """The edits that these tokens bring; they only grow from call to call."""
        thinking = self.thinking
        forced = thinking.forced_after(output_token_ids) if thinking else None
        return LateEdits(self.banned_after(output_token_ids), forced)

    def banned_after(self, output_token_ids: Sequence[int]) -> frozenset[int]:
        """The tokens that would complete a phrase after these."""
        return frozenset(
            last for *first, last in self.phrases if _ends_with(output_token_ids, first)
        )

    def restrict(self, allowed: np.ndarray) -> None:
        """Clear the bits, int32 ``[at least ceil(V / 32)]``, of tokens that the request bans."""
        if self.allowed is not None:
            allowed[: len(self.allowed)] &= self.allowed

    def write(self, row: LogitEdits, late: LateEdits) -> None:
        """Fill one row of NumPy arrays, of no edits so far, with all that applies now."""
        edits = [*self.fixed, *((token, -np.inf, ALWAYS) for token in sorted(late.banned))]
        if late.forced is not None:
            edits.append((late.forced, _FORCE, ALWAYS))
        for array, values in zip(row, zip(*edits, strict=True), strict=False):
            array[: len(edits)] = values
        if self.allowed is not None:
            row.allowed[:] = self.allowed


def _ends_with(tokens: Sequence[int], end: list[int]) -> bool:
    return list(tokens[-len(end) :]) == end
