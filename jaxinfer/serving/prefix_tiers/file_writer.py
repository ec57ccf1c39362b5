"""The file tier as the tier behind host memory: nobody waits for its disk to write."""

import threading
import time
from collections.abc import Buffer, Iterable

from jaxinfer.serving.prefix_tiers.block_file import HASH_BYTES
from jaxinfer.serving.prefix_tiers.file_tier import FileTier
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.threads.worker_thread import WorkerThread

MOST_WAITING_BYTES = 256 << 20
"""Of blocks that wait to be written, beside the host tier's memory."""
CLOSE_SECONDS = 10.0
"""Time at an engine's end for writing what the host tier still has."""


class FileWriter:
    """A `NextTier` of files, written by a thread of its own.

    A disk that is slower than blocks come loses some of them and holds up nothing else.

    Args:
        files: the store; several engines of a process may share it.
        reports: whether the store's counts are reported here, for one of these engines.

    Attributes:
        num_dropped: blocks that were not written because too many waited.
    """

    def __init__(self, files: FileTier, *, reports: bool = True) -> None:
        self.files = files
        self._reports = reports
        self.num_dropped = 0
        self._most_waiting = max(MOST_WAITING_BYTES // files.block_bytes, 1)
        self._waiting: dict[bytes, Buffer] = {}
        self._lock = threading.Lock()
        self._is_late = False  # what the thread has not begun by then is lost
        self._thread = WorkerThread("jaxinfer-tiers-files")

    def __contains__(self, key: bytes) -> bool:
        """Whether the block waits to be written, or has a file."""
        return key in self._waiting or key in self.files

    def read(self, key: bytes) -> bytes | None:
        """The block's bytes; None if they are lost."""
        data = self._waiting.get(key)
        return self.files.read(key) if data is None else bytes(data)

    def wants(self, key: bytes) -> bool:
        """Whether `write` would keep the block now; counts those for which there is no room.

        Keys that mean something to this process alone are of another length, and nobody could ask
        for their files.
        """
        is_kept = key in self._waiting or self.files.touch(key)
        if is_kept or len(key) != HASH_BYTES or not self.files.is_writable:
            return False
        has_room = len(self._waiting) < self._most_waiting
        self.num_dropped += not has_room
        return has_room

    def write(self, key: bytes, data: Buffer) -> None:
        """Have a block written soon that is wanted; `data` must not change."""
        with self._lock:
            self._waiting[key] = data
        self._thread.submit(self._store, key)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Never find these blocks again."""
        keys = list(keys)
        with self._lock:
            for key in keys:
                self._waiting.pop(key, None)
        self.files.forget(keys)
        self._thread.submit(self._remove, keys)

    def count(self, counts: TierCounts) -> None:
        """Write what happened so far into an engine's counts."""
        counts.disk_dropped = self.num_dropped
        if self._reports:
            so_far = self.files.counts
            counts.disk_written, counts.disk_lost = so_far.written, so_far.damaged + so_far.lost
            counts.disk_blocks = self.files.num_blocks
            counts.disk_capacity_blocks = self.files.capacity_blocks

    def close(self, leaving: Iterable[tuple[bytes, Buffer]] = ()) -> None:
        """Write what waits, and of what leaves host memory with the engine as much as time allows.

        Args:
            leaving: keys and blocks, the most valuable first.
        """
        end = time.monotonic() + CLOSE_SECONDS
        self._thread.close(CLOSE_SECONDS)
        self._is_late = True
        for key, data in leaving:
            if time.monotonic() > end or not self.files.is_writable:
                break
            if len(key) == HASH_BYTES:
                self.files.write(key, data)

    def _store(self, key: bytes) -> None:
        data = self._waiting.get(key)
        if data is None or self._is_late:  # or it was forgotten meanwhile
            return
        try:
            self.files.write(key, data)
        finally:
            with self._lock:  # other data of that key may wait by now
                if is_wanted := self._waiting.get(key) is data:
                    del self._waiting[key]
        if not is_wanted:
            self.files.forget([key])

    def _remove(self, keys: list[bytes]) -> None:
        self.files.forget(keys)  # one may just have been written
        self.files.remove_forgotten()
