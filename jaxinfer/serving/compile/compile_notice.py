"""Tells the user on stderr that a step waits for a compilation, which would look like a hang."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_PATIENCE_S = 0.5  # programs found in the cache load in less
_texts: set[object] = set()  # one for each that is written now


@contextlib.contextmanager
def compile_notice(count: int, *, enabled: bool, patience_s: float = _PATIENCE_S) -> Iterator[None]:
    """Write a line to stderr when the block takes long, and another with its time at its end."""
    programs = f"{count} program{'s' * (count != 1)}"
    start = time.perf_counter()
    timer = threading.Timer(patience_s, _say, [f"compiling {programs} ..."])
    timer.daemon = True
    if enabled:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
    seconds = time.perf_counter() - start
    if enabled and seconds > patience_s:
        timer.join()  # or the lines could change places
        _say(f"compiled {programs} in {seconds:.1f} s")


@contextlib.contextmanager
def no_compile_notices() -> Iterator[None]:
    """Write no such line within the block: the user reads an answer as it is written."""
    # At the interpreter's exit a module's names are gone before an abandoned generator is closed.
    texts, own = _texts, object()
    texts.add(own)
    try:
        yield
    finally:
        texts.discard(own)


def _say(text: str) -> None:
    """Write a line to stderr, ignoring errors: the user's stream may be closed or broken."""
    if _texts:
        return
    with contextlib.suppress(Exception):
        # A terminal may be in the middle of a line, or of a progress bar.
        before = "\n" if sys.stderr.isatty() else ""
        print(f"{before}{text}", file=sys.stderr, flush=True)
