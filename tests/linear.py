"""Tells linear work from quadratic by a ratio of two sizes, which no speed of a machine decides."""

import gc
import time
from collections.abc import Callable

Work = Callable[[], object]

_MOST_RUNS = 12  # other work on the machine slows some of them down
_LARGE_BLOCK = 31 << 20


def assert_grows_at_most(few: Work, many: Work, most: float) -> None:
    """Run both until `many` took at most `most` times as long as `few`, each at its best.

    Counted is this thread's processor time without garbage collections, which would look through
    what other tests have left.

    Raises:
        AssertionError: it never did.
    """
    best_of_few = best_of_many = float("inf")
    was_enabled = gc.isenabled()
    gc.disable()
    # glibc asks the system anew for every block that is larger than any it has seen freed, and
    # fresh pages take longer than what is measured.
    bytearray(_LARGE_BLOCK)
    try:
        for _ in range(_MOST_RUNS):
            best_of_few = min(best_of_few, _cpu_seconds(few))
            best_of_many = min(best_of_many, _cpu_seconds(many))
            if best_of_many <= most * best_of_few:
                return
    finally:
        if was_enabled:
            gc.enable()
    growth = best_of_many / best_of_few
    raise AssertionError(f"it took {growth:.1f} times as long, and {most:.1f} times is the limit")


def assert_linear(work_of: Callable[[int], Work], small: int, large: int) -> None:
    """Show that the time of work grows with its size, and not with the size's square.

    The limit lies halfway between both, as a factor: 22 for work of eight times the size.

    Args:
        work_of: prepares the work of a size, which may run several times.
        small: enough for the clock: 100 microseconds of work and more.
        large: several times as much.

    Raises:
        AssertionError: it grows faster.
    """
    assert_grows_at_most(work_of(small), work_of(large), (large / small) ** 1.5)


def _cpu_seconds(work: Work) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start
