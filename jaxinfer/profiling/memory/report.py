"""The memory report: bytes by owner in each phase, from loading weights to generating."""

import dataclasses
from typing import Any

from jaxinfer.profiling.memory.holdings import MemoryOwner, MemoryPhase
from jaxinfer.profiling.memory.text import bytes_text, phase_table, unit_of

_OUTSIDE = "outside: CUDA itself, its graphs, NCCL and other programs."
_NOT_TOLD = (
    "A {device} does not report its memory: arrays are counted, step temporaries are the "
    "compiler's,\nand what compiling took is not known."
)


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The memory of each of an engine's devices, by owner and phase.

    ``str()`` is a table.

    Attributes:
        device: its kind ("NVIDIA H200", "cpu").
        num_devices: devices that share the model; all figures are for one of them.
        device_bytes: the device's memory; None if not reported.
        is_measured: whether the device reports its memory. If not (a CPU), step temporaries are the
            compiler's, and other owners' bytes are unknown.
        phases: the phases, in the order of time.
        largest_program: the compiled step that needs the most temporaries; None if no step is
            compiled yet.
    """

    device: str
    num_devices: int
    device_bytes: int | None
    is_measured: bool
    phases: tuple[MemoryPhase, ...]
    largest_program: str | None

    @property
    def peak_phase(self) -> MemoryPhase:
        """The phase in which the device is fullest; the earliest of equals."""
        return max(self.phases, key=lambda phase: phase.num_bytes)

    @property
    def peak_bytes(self) -> int:
        """Bytes in use when the device is fullest."""
        return self.peak_phase.num_bytes

    @property
    def peak_owner(self) -> MemoryOwner:
        """The owner that holds the most at the peak."""
        return max(self.peak_phase.holdings, key=lambda holding: holding.num_bytes).owner

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values: the attributes, and values derived from them."""
        values = dataclasses.asdict(self)
        for phase, row in zip(self.phases, values["phases"], strict=True):
            row["num_bytes"] = phase.num_bytes
        return values | {
            "peak_bytes": self.peak_bytes,
            "peak_phase": self.peak_phase.name,
            "peak_owner": self.peak_owner,
        }

    def __str__(self) -> str:
        peak, owner = self.peak_phase, self.peak_owner
        devices = f"{self.num_devices} x " if self.num_devices > 1 else ""
        of_device = f" of {bytes_text(self.device_bytes)}" if self.device_bytes else ""
        lines = [
            f"Memory of {devices}{self.device}, in {unit_of(peak.num_bytes)[0]} of each device",
            "",
            *phase_table(self.phases),
            "",
            f"Peak: {bytes_text(peak.num_bytes)}{of_device}, {peak.name}; most of it "
            f"{bytes_text(peak.bytes_of(owner))} of {owner}.",
        ]
        if self.largest_program:
            lines.append(f"Most step temporaries: {self.largest_program}")
        lines += [_OUTSIDE] if any(phase.bytes_of("outside") for phase in self.phases) else []
        lines += [] if self.is_measured else [_NOT_TOLD.format(device=self.device.upper())]
        return "\n".join(lines)
