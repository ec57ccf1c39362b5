"""A recording as of a GPU, without one."""

from scripts.measurements.memory_recording import MemoryRecording, MemorySample
from tests.profiling.memory.examples import GIB, report


def recording(num_samples=1000):
    recorded = MemoryRecording(report(), weight_bytes=15 * GIB, kv_bytes=100 * GIB, slot_bytes=GIB)
    for i in range(num_samples):
        sample = MemorySample(i * 0.01, 8, 8, i * 2**20, GIB, 117 * GIB, "DecodeShape(rows=8)")
        recorded.samples.append(sample)
    return recorded
