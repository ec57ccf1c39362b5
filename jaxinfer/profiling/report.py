"""The report of a profile: time by step, part and kernel, beside the device's speeds."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxinfer.planning.devices import Chip
from jaxinfer.profiling.files import REPORT_JSON
from jaxinfer.profiling.host_time import Timing
from jaxinfer.profiling.steps import Kind
from jaxinfer.profiling.text import report_lines

DATA_SHEET = "its data sheet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peak:
    """What the device can do at most.

    Attributes:
        name: the device.
        bytes_per_s: of its memory, sustained.
        flops_per_s: of its matrix units, in the profile's dtype, likewise.
        source: where the numbers are from.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float
    source: str

    @classmethod
    def of_chip(cls, chip: Chip) -> "Peak":
        """A device's of which both speeds were measured, or published."""
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
        kind: of the steps.
        part: of `profiling.parts.PARTS`, or "other".
        kernel: the kernel's name without its number, or "" for a whole part.
        calls: launches a step.
        seconds: a step, by the device's clock; of kernels that overlap, the sum.
        share: of the seconds of all kernels.
        num_bytes: a step; of a part the least that its tokens need, of a kernel those of its
            operands and results. None if shapes don't tell, or another kernel of the same
            instruction does the work.
        flops: likewise.
        memory_share: of the memory's speed; None without `num_bytes` or the device's peak.
        matrix_share: of the matrix units' speed; likewise.
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
        busy_s: of these, with a kernel at work.
        num_gaps: stretches between kernels without any.
        gap_s: seconds of these.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of the time line of one step.

    Attributes:
        lane: "device" or "host".
        name: a part, or what the host did.
        start_s: from the step's first kernel; the host may be earlier.
        seconds: how long.
    """

    lane: str
    name: str
    start_s: float
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """What a profile says; made by `jaxinfer.profiling.read_report`.

    Attributes:
        title: model and device.
        model: name and sizes.
        device: JAX's name of its kind.
        platform: "cpu" or "gpu".
        dtype: of weights and activations.
        num_devices: that share the model; kernels are the first one's.
        peak: what the device can do, or None if that is not known.
        steps: a row for each kind.
        parts: in the order in which a step runs them.
        kernels: the longest first.
        timings: by the host's clock, of the recorded steps, and of the same steps unrecorded if
            the command measured them; the latter first.
        bars: the time line of the recorded decode step whose length is the median.
        notes: what to know when reading, one sentence each.
    """

    title: str
    model: dict[str, Any]
    device: str
    platform: str
    dtype: str
    num_devices: int
    peak: Peak | None
    steps: tuple[StepRow, ...]
    parts: tuple[WorkRow, ...]
    kernels: tuple[WorkRow, ...]
    timings: tuple[Timing, ...] = ()
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ProfileReport":
        """The inverse of `to_dict`."""
        rows = {
            "steps": StepRow,
            "parts": WorkRow,
            "kernels": WorkRow,
            "timings": Timing,
            "bars": Bar,
        }
        made = {name: tuple(row(**each) for each in values[name]) for name, row in rows.items()}
        peak = None if values["peak"] is None else Peak(**values["peak"])
        return cls(**{**values, **made, "peak": peak, "notes": tuple(values["notes"])})

    @classmethod
    def read(cls, directory: str | Path) -> "ProfileReport":
        """The report that is in a profile's directory.

        Raises:
            ValueError: there is none.
        """
        file = Path(directory) / REPORT_JSON
        if not file.is_file():
            raise ValueError(f"no report in {directory}: {REPORT_JSON} is missing")
        return cls.from_dict(json.loads(file.read_text()))

    def __str__(self) -> str:
        return "\n".join(report_lines(self))
