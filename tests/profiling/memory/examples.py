"""A report as of a GPU, without one."""

from jaxinfer.profiling.memory.phases import HeldBytes, MemoryMark, memory_phases
from jaxinfer.profiling.memory.report import MemoryReport

GIB = 2**30
HELD = HeldBytes(weights=15 * GIB, kv_cache=100 * GIB, slots=GIB, step=2 * GIB)


def mark(phase, in_use, peak, outside=3):
    return MemoryMark(phase, in_use * GIB, peak * GIB, outside * GIB)


MARKS = [
    mark("weights loaded", 15, 16, outside=1),
    mark("programs compiled", 15, 22, outside=2),
    mark("KV cache allocated", 117, 118),
    mark("generating", 117, 121),
]


def report(marks=MARKS):
    return MemoryReport(
        device="NVIDIA H200",
        num_devices=1,
        device_bytes=140 * GIB,
        is_measured=True,
        phases=memory_phases(marks, HELD, now=HELD),
        largest_program="PrefillShape(tokens=16384)",
    )
