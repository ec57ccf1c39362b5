"""Times of the CUDA driver's calls, of every thread of this process."""

import ctypes
import glob
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).with_suffix(".c")


class DriverCall(NamedTuple):
    """One call of the driver.

    Attributes:
        name: of the function.
        thread: the native id of the thread that called.
        start, end: seconds on `time.perf_counter`'s clock.
    """

    name: str
    thread: int
    start: float
    end: float


class DriverCalls:
    """Records the calls between `start` and `stop`; needs a C compiler and CUPTI.

    Raises:
        RuntimeError: there is no CUPTI, or another profiler has it.
    """

    def __init__(self) -> None:
        built = Path(tempfile.mkdtemp()) / "driver_calls.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", _SOURCE, "-o", built], check=True)
        self._library = ctypes.CDLL(str(built))
        self._library.count.restype = ctypes.c_long
        found = [path for root in _roots() for path in glob.glob(root, recursive=True)]
        if not found or self._library.open_cupti(found[0].encode()):
            raise RuntimeError("there is no libcupti.so")

    def start(self) -> None:
        """Forget what was recorded, and record."""
        if status := self._library.start():
            raise RuntimeError(f"CUPTI's status is {status}: is another profiler at work?")

    def stop(self) -> list[DriverCall]:
        """The calls since `start`, by their ends."""
        self._library.stop()
        return list(self._calls())

    def _calls(self) -> Iterator[DriverCall]:
        start, end = ctypes.c_double(), ctypes.c_double()
        thread, name = ctypes.c_long(), ctypes.c_char_p()
        into = [ctypes.byref(each) for each in (start, end, thread, name)]
        for i in range(self._library.count()):
            self._library.get(ctypes.c_long(i), *into)
            yield DriverCall((name.value or b"").decode(), thread.value, start.value, end.value)


def _roots() -> list[str]:
    packages = [f"{root}/nvidia/**/libcupti.so*" for root in sys.path if root]
    return [*packages, "/usr/**/libcupti.so*", "/opt/**/libcupti.so*"]
