"""The captured activations of one completion, on the host."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Captured:
    """Activations of consecutive tokens.

    Attributes:
        start: the position of the first token.
        values: NumPy arrays ``[tokens, ...]`` by layer, or under "logits".
        lost: why they could not be read, with no `values`; None if they were.
    """

    start: int
    values: Mapping[Any, Any] = field(default_factory=dict)
    lost: str | None = None

    def before(self, stop: int) -> dict[Any, Any] | None:
        """Those of tokens before position `stop`; None if they could not be read."""
        if self.lost is not None:
            return None
        count = max(stop - self.start, 0)
        return {name: array[:count] for name, array in self.values.items()}
