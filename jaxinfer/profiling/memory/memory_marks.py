"""Reads the devices' memory: in XLA's allocator, and outside it as CUDA reports."""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.profiling.memory.holdings import PhaseName
from jaxinfer.profiling.memory.phases import MemoryMark


def memory_mark(phase: PhaseName, devices: Sequence[Any]) -> MemoryMark:
    """Read the memory of the fullest of an engine's devices at the end of a phase."""
    told = [(device, stats) for device in devices if (stats := device.memory_stats())]
    if not told:
        return MemoryMark(phase)
    device, stats = max(told, key=lambda pair: pair[1].get("bytes_in_use", 0))
    return MemoryMark(
        phase,
        in_use_bytes=stats.get("bytes_in_use"),
        peak_bytes=stats.get("peak_bytes_in_use"),
        outside_bytes=_outside_bytes(device, stats),
    )


def device_bytes(device: Any) -> int | None:
    """All memory of a GPU, as CUDA reports it; None of other devices."""
    free_and_total = _cuda_memory(device)
    return None if free_and_total is None else free_and_total[1]


def _outside_bytes(device: Any, stats: Mapping[str, int]) -> int | None:
    """Bytes of a GPU that are in use outside XLA's allocator; None if unknown."""
    free_and_total = _cuda_memory(device)
    if free_and_total is None or "pool_bytes" not in stats:
        return None
    free, total = free_and_total
    return max(total - free - stats["pool_bytes"], 0)


def _cuda_memory(device: Any) -> tuple[int, int] | None:
    """Free and total bytes of a GPU, all processes counted; None if CUDA's driver does not say."""
    driver = _cuda_driver() if device.platform == "gpu" else None
    ordinal = getattr(device, "local_hardware_id", None)
    if driver is None or ordinal is None:
        return None
    context = ctypes.c_void_p()
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal):
        return None
    try:
        if driver.cuCtxPushCurrent_v2(context):
            return None
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return None if failed else (free.value, total.value)
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(ordinal)


@functools.cache
def _cuda_driver() -> Any:
    """NVIDIA's driver, which JAX has loaded if it uses a GPU; None without one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
