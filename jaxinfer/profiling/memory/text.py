"""Memory as aligned text: a table of phases."""

from collections.abc import Sequence

from jaxinfer.profiling.figures import aligned
from jaxinfer.profiling.memory.holdings import OWNERS, MemoryOwner, MemoryPhase

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def bytes_text(size: float, *, like: float | None = None) -> str:
    """Bytes with a unit that suits them, or the number alone in the unit that suits `like`.

    >>> bytes_text(3 << 29)
    '1.50 GiB'
    >>> bytes_text(3 << 29, like=5 << 20)
    '1536.00'
    """
    unit, factor = unit_of(size if like is None else like)
    return f"{size / factor:.2f}" + ("" if like is not None else f" {unit}")


def unit_of(size: float) -> tuple[str, int]:
    """The largest unit in which `size` is at least 1, and its bytes."""
    return next((unit for unit in _UNITS if size >= unit[1]), _UNITS[-1])


def phase_table(phases: Sequence[MemoryPhase]) -> list[str]:
    """A row a phase, a column for each owner that holds anything, in the unit of the peak."""
    owners: list[MemoryOwner] = [
        owner for owner in OWNERS if any(phase.bytes_of(owner) for phase in phases)
    ]
    peak = max(phase.num_bytes for phase in phases)
    rows = [["phase", *map(str, owners), "all"]]
    for phase in phases:
        sizes = [*(phase.bytes_of(owner) for owner in owners), phase.num_bytes]
        rows.append([phase.name, *(_cell(size, peak) for size in sizes)])
    return aligned(rows)


def _cell(size: int, like: int) -> str:
    return bytes_text(size, like=like) if size else "-"
