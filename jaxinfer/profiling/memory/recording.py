"""A recording of an engine's memory, with a sample for each step while it generates."""

import dataclasses
from typing import Any

from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.profiling.memory.samples import MemorySample
from jaxinfer.profiling.memory.text import bytes_text, sample_lines


class MemoryRecording:
    """Samples of every step while it runs, and the report of the phases; see `LLM.record_memory`.

    ``str()`` is a table.

    Attributes:
        samples: a `MemorySample` for each step, about 200 bytes of host memory each.
        report: the phases, as of the end of the recording, or of now while it runs.
        weight_bytes: on each device.
        kv_bytes: of the whole cache on each device.
        slot_bytes: what is kept of each running sequence, on each device.
    """

    def __init__(
        self, report: MemoryReport, *, weight_bytes: int, kv_bytes: int, slot_bytes: int
    ) -> None:
        self.samples: list[MemorySample] = []
        self.report = report
        self.weight_bytes = weight_bytes
        self.kv_bytes = kv_bytes
        self.slot_bytes = slot_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that was held while it recorded: measured, or by arrays and compiler."""
        steps = max((sample.step_bytes for sample in self.samples), default=0)
        measured = max((sample.in_use_bytes or 0 for sample in self.samples), default=0)
        return max(self.weight_bytes + self.kv_bytes + self.slot_bytes + steps, measured)

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values."""
        return {
            "report": self.report.to_dict(),
            "weight_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "slot_bytes": self.slot_bytes,
            "peak_bytes": self.peak_bytes,
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
        }

    def __str__(self) -> str:
        lines = sample_lines(self.samples, kv_bytes=self.kv_bytes)
        peak = [f"Peak while recorded: {bytes_text(self.peak_bytes)}"] if self.samples else []
        return "\n".join([str(self.report), "", *lines, *peak])
