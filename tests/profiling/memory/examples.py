"""A report and a recording as of a GPU, without one."""

from jaxinfer.profiling.memory.phases import HeldBytes, MemoryMark, memory_phases
from jaxinfer.profiling.memory.recording import MemoryRecording
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.profiling.memory.samples import MemorySample

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


def recording(num_samples=1000):
    recorded = MemoryRecording(report(), weight_bytes=15 * GIB, kv_bytes=100 * GIB, slot_bytes=GIB)
    for i in range(num_samples):
        sample = MemorySample(i * 0.01, 8, 8, i * 2**20, GIB, 117 * GIB, "DecodeShape(rows=8)")
        recorded.samples.append(sample)
    return recorded
