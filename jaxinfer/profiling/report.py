"""The report of a profile: time by step, part and kernel, beside the device's speeds."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from jaxinfer.profiling.files import REPORT_JSON, REPORT_TEXT
from jaxinfer.profiling.host_time import Timing
from jaxinfer.profiling.rows import Peak, StepRow, WorkRow
from jaxinfer.profiling.text import heading, step_table, timing_table, work_tables


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """The report of a profile; made by `jaxinfer.profiling.read_report`.

    Attributes:
        title: model and device.
        model: name and sizes.
        device: JAX's name of its kind.
        platform: "cpu" or "gpu".
        dtype: dtype of weights and activations.
        num_devices: devices that share the model; kernels are the first one's.
        peak: the device's speeds; None if unknown.
        steps: a row for each kind.
        parts: in the order in which a step runs them.
        kernels: the longest first.
        timings: by the host's clock, of the recorded steps, and of the same steps unrecorded if
            the command measured them; the latter first.
        notes: remarks for the reader, one sentence each.
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
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ProfileReport":
        """The inverse of `to_dict`."""
        rows = {"steps": StepRow, "parts": WorkRow, "kernels": WorkRow, "timings": Timing}
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

    def save(self, directory: Path) -> None:
        """Write the report into its profile's directory, as JSON and as text."""
        (directory / REPORT_JSON).write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        (directory / REPORT_TEXT).write_text(f"{self}\n")

    def __str__(self) -> str:
        lines = (
            *heading(f"{self.title}, {self.dtype}", self.peak),
            *step_table(self.steps),
            *work_tables(self.steps, self.parts, self.kernels),
            *timing_table(self.timings, self.steps),
            *(f"Note: {note}." for note in self.notes),
        )
        return "\n".join(lines)
