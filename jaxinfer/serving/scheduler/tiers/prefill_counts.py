"""How many tokens prefills had, and how long they took, so far."""

from typing import Protocol


class PrefillCounts(Protocol):
    """A part of `engine.step_counts.StepCounts`."""

    prefill_tokens: int
    prefill_seconds: float
