"""The rows of a profile's report: the device's speeds, steps, their parts and kernels."""

import dataclasses

from jaxinfer.planning.devices import Chip
from jaxinfer.profiling.trace.steps import Kind

DATA_SHEET = "its data sheet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peak:
    """The highest speeds of a device.

    Attributes:
        name: the device.
        bytes_per_s: of its memory, sustained.
        flops_per_s: of its matrix units, in the profile's dtype, sustained.
        source: the origin of the numbers.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    source: str

    @classmethod
    def of_chip(cls, chip: Chip) -> "Peak":
        """The peak of a chip, from its measured or published speeds."""
        source = "the best kernels on this device" if chip.measured else DATA_SHEET
        return cls(
            name=chip.name,
            bytes_per_s=chip.bytes_per_s,
            flops_per_s=chip.flops_per_s,
            source=source,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkRow:
    """A part of the model, or one kernel of a part, in the mean step of its kind.

    Attributes:
        kind: the steps' kind.
        part: of `profiling.parts.PARTS`, or "other".
        kernel: the kernel's name without its number, or "" for a whole part.
        calls: launches a step.
        seconds: a step, by the device's clock; of kernels that overlap, the sum.
        share: of the seconds of all kernels.
        num_bytes: least bytes that a part moves for a step's tokens; None for kernels and "other".
        flops: least operations of a part for a step's tokens; None for kernels and "other".
        memory_share: of the memory's speed; None without `num_bytes` or the device's peak.
        matrix_share: of the matrix units' speed; None without `flops` or the device's peak.
    """

    kind: Kind
    part: str
    kernel: str = ""
    calls: float
    seconds: float
    share: float
    num_bytes: float | None = None
    flops: float | None = None
    memory_share: float | None = None
    matrix_share: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepRow:
    """The mean step of a kind; seconds are the device's clock, unless they are the host's.

    Attributes:
        kind: "prefill" or "decode".
        steps: recorded; a multi-step decode is one.
        num_steps: of each, 1 or the length of a multi-step decode.
        rows: sequences.
        tokens: fed.
        context_tokens: read by attention.
        span_s: from the first kernel to the end of the last.
        busy_s: seconds of the span in which a kernel ran.
        num_gaps: number of stretches of the span in which no kernel ran.
        gap_s: seconds of all gaps.
        longest_gap_s: the longest.
        idle_before_s: from the end of the step before to the first kernel; None of the first step.
    """

    kind: Kind
    steps: int
    num_steps: float = 1.0
    rows: float
    tokens: float
    context_tokens: float
    span_s: float
    busy_s: float
    num_gaps: float
    gap_s: float
    longest_gap_s: float
    idle_before_s: float | None
