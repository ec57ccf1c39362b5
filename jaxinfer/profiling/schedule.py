"""The schedule of a profile: the steps to record, as in torch's `profiler.schedule`."""

import dataclasses
from typing import Literal

Phase = Literal["wait", "warmup", "active", "done"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileSchedule:
    """Steps of the engine to skip, to trace and drop, and to record; then perhaps again.

    The default records five steps: of a fresh batch, one prefill and four decodes. A multi-step
    decode is one step.

    Attributes:
        wait: steps that run as always.
        warmup: steps that are then traced and dropped, because the profiler starts slowly.
        active: steps that are then recorded; the first of a fresh batch is a prefill.
        repeat: number of repetitions of all this.

    Raises:
        TypeError: a number is not an integer.
        ValueError: `wait` or `warmup` is negative, or `active` or `repeat` is less than 1.
    """

    wait: int = 0
    warmup: int = 0
    active: int = 5
    repeat: int = 1

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), int(field.name in ("active", "repeat"))
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"a profile's {field.name} must be an integer, got {value!r}")
            if value < least:
                raise ValueError(f"a profile's {field.name} must be at least {least}, got {value}")

    @property
    def num_steps(self) -> int:
        """Steps from the first to the last that is recorded."""
        return self.cycle_steps * self.repeat

    @property
    def cycle_steps(self) -> int:
        """Steps of one repetition."""
        return self.wait + self.warmup + self.active

    def phase(self, step: int) -> Phase:
        """The phase that a step belongs to.

        Args:
            step: 0 is the first after the profile began.
        """
        if step >= self.num_steps:
            return "done"
        place = step % self.cycle_steps
        if place < self.wait:
            return "wait"
        return "warmup" if place < self.wait + self.warmup else "active"

    def begins(self, step: int) -> bool:
        """True if another phase or repetition begins with a step."""
        place = step % self.cycle_steps
        return step >= self.num_steps or place in (0, self.wait, self.wait + self.warmup)
