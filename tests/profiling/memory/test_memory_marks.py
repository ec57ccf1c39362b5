"""Marks are what the fullest device says, and CUDA of what is beside XLA's allocator."""

import types

import pytest

from jaxinfer.profiling.memory import memory_marks
from jaxinfer.profiling.memory.memory_marks import device_bytes, memory_mark

GIB = 2**30


class _Driver(types.SimpleNamespace):
    """CUDA's, of a device of 140 GiB with 20 free; or one whose calls fail."""

    def __init__(self, status=0):
        super().__init__(status=status, depth=0, held=0)
        self.cuDevicePrimaryCtxRetain = lambda *_: self._add("held", 1)
        self.cuDevicePrimaryCtxRelease_v2 = lambda *_: self._add("held", -1)
        self.cuCtxPushCurrent_v2 = lambda *_: self._add("depth", 1)
        self.cuCtxPopCurrent_v2 = lambda *_: self._add("depth", -1)
        self.cuMemGetInfo_v2 = self._tell

    def _add(self, name, count):
        setattr(self, name, getattr(self, name) + count)
        return 0

    def _tell(self, free, total):
        free._obj.value, total._obj.value = 20 * GIB, 140 * GIB
        return self.status


def _device(in_use, platform="gpu"):
    stats = {"bytes_in_use": in_use, "peak_bytes_in_use": in_use + 1, "pool_bytes": 110 * GIB}
    return types.SimpleNamespace(
        platform=platform, local_hardware_id=0, memory_stats=lambda: stats if in_use else None
    )


@pytest.fixture
def driver(monkeypatch):
    driver = _Driver()
    monkeypatch.setattr(memory_marks, "_cuda_driver", lambda: driver)
    return driver


def test_the_fullest_device_speaks(driver):
    mark = memory_mark("generating", [_device(5), _device(9), _device(7)])
    assert (mark.in_use_bytes, mark.peak_bytes) == (9, 10)


def test_what_is_outside_the_allocator_is_what_cuda_says_beyond_it(driver):
    assert memory_mark("generating", [_device(5)]).outside_bytes == (140 - 20 - 110) * GIB
    assert device_bytes(_device(5)) == 140 * GIB
    assert driver.depth == driver.held == 0


def test_a_driver_that_fails_says_nothing(driver):
    driver.status = 1
    assert memory_mark("generating", [_device(5)]).outside_bytes is None
    assert driver.depth == driver.held == 0


def test_a_cpu_says_nothing(driver):
    cpu = _device(0, platform="cpu")
    mark = memory_mark("weights loaded", [cpu])
    assert (mark.in_use_bytes, mark.peak_bytes, mark.outside_bytes) == (None, None, None)
    assert device_bytes(cpu) is None
