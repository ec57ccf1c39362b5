"""The captured activations that a request asks for, and those that its completions got."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxinfer.capture import CapturedTokens


@dataclass(frozen=True, eq=False)
class Captured:
    """Activations of consecutive tokens of one completion.

    Attributes:
        start: the position of the first token.
        values: NumPy arrays ``[tokens, ...]`` by layer, or under "logits".
    """

    start: int
    values: Mapping[Any, Any]


@dataclass(eq=False)
class WantedCapture:
    """What one caller's request asks for; filled in as its completions end.

    Attributes:
        tokens: whose activations are wanted.
        found: by the id of each completion's `Request`.
        lost: why some could not be read; None if all were.
    """

    tokens: CapturedTokens
    found: dict[str, Captured] = field(default_factory=dict)
    lost: str | None = None

    def of(self, request_id: str, num_fed: int) -> dict[Any, Any] | None:
        """Those of a completion; None before it has ended, and if none could be read.

        Args:
            request_id: of the completion's `Request`.
            num_fed: tokens that it keeps and that were fed, its prompt's among them.
        """
        if (found := self.found.get(request_id)) is None:
            return None
        count = max(num_fed - found.start, 0)
        return {name: array[:count] for name, array in found.values.items()}
