"""Threads for work on texts: small texts never wait for large ones, and the queues are bounded."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from jaxinfer.errors import QueueFullError

LARGE = 1 << 16
"""Characters of a text, or bytes of an answer, that count as large: some 50 ms of work."""

_MOST_WAITING = 1024
"""Most pieces of work that wait in a lane."""
_MOST_SIZE = 64 << 20
"""Most total size of work that waits in a lane: a minute of tokenizing."""


class Lanes:
    """Two queues with threads of their own, one of them for large work."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = {
            "small": ThreadPoolExecutor(num_threads, f"jaxinfer-{name}"),
            "large": ThreadPoolExecutor(1, f"jaxinfer-{name}-large"),
        }
        self._waiting: dict[str, list[int]] = {lane: [] for lane in self._threads}

    async def run[T](self, work: Callable[[], T], size: int) -> T:
        """Run work whose time grows with `size` and return its result.

        Raises:
            QueueFullError: the queue is full.
            Exception: the work's own.
        """
        lane = "small" if size <= LARGE else "large"
        waiting = self._waiting[lane]
        if len(waiting) >= _MOST_WAITING or (waiting and sum(waiting) + size > _MOST_SIZE):
            raise QueueFullError(f"the queue of {lane} texts is full; try again later")
        waiting.append(size)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads[lane], work)
        finally:
            waiting.remove(size)

    def close(self) -> None:
        """End the threads; what they do is finished first."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
