"""Derives the memory of each phase of an engine's start from readings of the device."""

import dataclasses
from collections.abc import Sequence

from jaxinfer.profiling.memory.holdings import (
    OWNERS,
    MemoryHolding,
    MemoryOwner,
    MemoryPhase,
    MemorySource,
    PhaseName,
)


@dataclasses.dataclass(frozen=True)
class MemoryMark:
    """A device's memory readings at the end of a phase; None for those it does not report.

    Attributes:
        phase: the phase that ended.
        in_use_bytes: in XLA's allocator.
        peak_bytes: the most that ever was in use there.
        outside_bytes: of the device, in use but not in the allocator.
    """

    phase: PhaseName
    in_use_bytes: int | None = None
    peak_bytes: int | None = None
    outside_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class HeldBytes:
    """Bytes of the arrays that an engine keeps on each device.

    Attributes:
        slots: state kept for each running sequence.
        step: temporaries of the largest compiled step, as the compiler states them; None if none is
            compiled.
    """

    weights: int
    kv_cache: int
    slots: int
    step: int | None


def memory_phases(
    marks: Sequence[MemoryMark], held: HeldBytes, *, now: HeldBytes
) -> tuple[MemoryPhase, ...]:
    """The owners of the memory at the fullest moment of each phase.

    Args:
        marks: of one device, in the order of time; the last is "generating", of now.
        held: bytes that the engine keeps there since its start.
        now: the same at this moment; less while the engine sleeps.
    """
    phases, before = [], None
    for mark in marks:
        phases.append(_phase(mark, before, now if mark.phase == "generating" else held))
        before = mark
    return tuple(phases)


def _phase(mark: MemoryMark, before: MemoryMark | None, held: HeldBytes) -> MemoryPhase:
    arrays: dict[MemoryOwner, int] = {"weights": held.weights}
    if mark.phase in ("KV cache allocated", "generating"):
        arrays |= {"KV cache": held.kv_cache, "slots": held.slots}
    found = {owner: MemoryHolding(owner, size, "arrays") for owner, size in arrays.items()}

    def add(owner: MemoryOwner, size: int | None, source: MemorySource) -> None:
        if size is not None:
            found[owner] = MemoryHolding(owner, size, source)

    beyond = _beyond(mark, before, sum(arrays.values()))
    if mark.phase == "programs compiled":
        add("compile scratch", beyond, "measured")
    elif mark.phase == "generating":
        add("step temporaries", held.step, "compiler")
        add("step temporaries", beyond, "measured")
    if mark.in_use_bytes is not None:
        add("other", mark.in_use_bytes - sum(arrays.values()), "measured")
    add("outside", mark.outside_bytes, "measured")
    kept = (found[owner] for owner in OWNERS if owner in found)
    return MemoryPhase(mark.phase, tuple(each for each in kept if each.num_bytes > 0))


def _beyond(mark: MemoryMark, before: MemoryMark | None, arrays: int) -> int | None:
    """Bytes that a phase used temporarily, beyond those that stayed in use; None if unknown.

    The allocator's peak covers the whole process, so it is known only for phases that raised it.
    """
    if mark.peak_bytes is None or mark.in_use_bytes is None:
        return None
    if before is None or before.peak_bytes is None or mark.peak_bytes <= before.peak_bytes:
        return None
    return mark.peak_bytes - max(mark.in_use_bytes, arrays)
