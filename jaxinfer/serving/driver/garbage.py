"""Keeps Python's garbage collector from walking through all of JAX while a batch runs."""

import contextlib
import gc
import threading
from collections.abc import Iterator

_FEWEST_YOUNG = 50_000  # a step of 512 rows has some thousand objects in flight


class _Blocks:
    """The blocks that run, and the thresholds from before the first of them."""

    lock = threading.Lock()
    count = 0
    before: tuple[int, int, int] = (700, 10, 10)


@contextlib.contextmanager
def few_collections() -> Iterator[None]:
    """Within the block, collect garbage only once 50,000 more objects live than at the last time.

    The rows of steps in flight live just long enough to count as old when Python collects every
    700 objects, its default. Enough of them make it look for garbage among all objects: with 256
    rows once in 500 steps, for 0.15 s each time. Thresholds are the process's: those that were set
    before the first of several such blocks come back after the last, unless they were changed.
    """
    with _Blocks.lock:
        if _Blocks.count == 0:
            youngest, *older = _Blocks.before = gc.get_threshold()
            gc.set_threshold(max(youngest, _FEWEST_YOUNG) if youngest else 0, *older)
        _Blocks.count += 1
        within = gc.get_threshold()
    try:
        yield
    finally:
        with _Blocks.lock:
            _Blocks.count -= 1
            if _Blocks.count == 0 and gc.get_threshold() == within:
                gc.set_threshold(*_Blocks.before)
