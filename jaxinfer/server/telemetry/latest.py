"""A value that sometimes takes long to read; the last known one is then returned."""

import asyncio
from collections.abc import Awaitable, Callable


class Latest[T]:
    """Reads a value, or returns the last one if that takes too long; of one event loop.

    There is one read at a time, so that callers who come meanwhile leave no more work behind.

    Args:
        patience: seconds to wait for a read once a value is known; the first is waited for.
    """

    def __init__(self, read: Callable[[], Awaitable[T]], patience: float) -> None:
        self._read = read
        self._patience = patience
        self._reading: asyncio.Task[None] | None = None
        self._known: list[T] = []

    async def get(self) -> T:
        """The value, or the error of its read."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_anew())
            self._reading.add_done_callback(_note_exception)  # there may be nobody waiting by then
        reading = self._reading
        await asyncio.wait([reading], timeout=self._patience if self._known else None)
        if reading.done():
            reading.result()
        return self._known[0]

    async def _read_anew(self) -> None:
        self._known = [await self._read()]


def _note_exception(reading: asyncio.Task[None]) -> None:
    if not reading.cancelled():
        reading.exception()
