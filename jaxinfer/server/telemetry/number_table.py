"""A table of numbers that one process changes and others read; in a file for several processes.

Every front end of a server has a file in one directory. A front end that is asked for metrics adds
up all of them, so it does not matter which one a scrape reaches, and the counts of a front end that
has ended remain.
"""

import hashlib
import mmap
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

_SUFFIX = ".counts"
_BYTES = 8  # of a float64, which a processor writes whole


class NumberTable:
    """A row of float64, all 0 at first, which only this process changes.

    Args:
        layout: text that says what each of them means; only tables of the same layout are added up.
        directory: a directory for this server run alone, shared by its front ends; None keeps the
            numbers in memory.

    Raises:
        OSError: the directory can't be written.
    """

    def __init__(self, size: int, layout: str, directory: Path | None = None) -> None:
        self._pattern = f"*-{hashlib.sha256(layout.encode()).hexdigest()[:16]}{_SUFFIX}"
        self._size = size
        self._directory = directory
        self.values: memoryview[float]
        """The numbers, float64 ``[size]``."""
        if directory is None:
            self.values = memoryview(array("d", bytes(size * _BYTES)))
            return
        self._path = directory / self._pattern.replace("*", f"{os.getpid()}-{id(self):x}")
        with self._path.open("xb+") as file:
            file.truncate(size * _BYTES)
            self.values = memoryview(mmap.mmap(file.fileno(), size * _BYTES)).cast("d")

    def totals(self) -> Sequence[float]:
        """The sums over the tables of all processes, ``[size]``."""
        if self._directory is None:
            return self.values.tolist()
        totals = [0.0] * self._size
        for path in self._directory.glob(self._pattern):
            data = path.read_bytes()
            if len(data) == self._size * _BYTES:  # not while another process makes its file
                totals = [a + b for a, b in zip(totals, array("d", data), strict=True)]
        return totals
