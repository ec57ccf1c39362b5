"""A progress bar on stderr whose failures end the bar, never the work that it counts."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm


class ProgressBar:
    """Shows the progress of the work in a ``with`` block.

    If the terminal raises (a closed pipe, a closed file, a replacement of `sys.stderr` that fails),
    the bar disappears and nothing else happens.

    Args:
        total: number of units of work; None if `advance_to` will give it: until then nothing is
            shown, since the work may fail before it is measured.
        description: stands before the bar.
        enabled: False shows nothing.
        unit: the noun for what is counted, such as "request".
        unit_scale: whether numbers are shortened with k, M, G.
        make: makes the bar in tqdm's place, from ``total`` and ``desc`` by name; it needs `update`,
            `set_postfix_str` and `close`.
    """

    def __init__(
        self,
        total: int | None,
        description: str,
        *,
        enabled: bool,
        unit: str = "it",
        unit_scale: bool = False,
        make: Callable[..., Any] | None = None,
    ) -> None:
        self._start = time.perf_counter()
        self._bar: Any = None
        self._show: Callable[..., Any] | None = None
        if make is not None:
            self._bar = make(total=total, desc=description)  # what it raises is the caller's
        elif enabled:
            self._show = functools.partial(
                _Bar,
                desc=description,
                unit=unit,
                unit_scale=unit_scale,
                miniters=1,  # or tqdm's own thread would write, too, and raise there
            )
            if total is not None:
                self._begin(total)

    @property
    def elapsed(self) -> float:
        """Seconds since the bar was made."""
        return time.perf_counter() - self._start

    def update(self, n: int = 1) -> None:
        """Count `n` more."""
        with self._ending_on_failure():
            if self._bar is not None:
                self._bar.update(n)

    def advance_to(self, done: int, total: int) -> None:
        """Count up to `done` of `total`, for work whose size is known late."""
        self._begin(total)
        with self._ending_on_failure():
            if self._bar is not None:
                self._bar.total = total
                self._bar.update(done - self._bar.n)

    def set_postfix(self, text: str) -> None:
        """Show `text` after the bar from the next update on."""
        with self._ending_on_failure():
            if self._bar is not None:
                self._bar.set_postfix_str(text, refresh=False)

    def __enter__(self) -> Self:
        """Show the bar."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the bar."""
        with self._ending_on_failure():
            if self._bar is not None:
                self._bar.close()

    def _begin(self, total: int) -> None:
        """Show the bar, unless it was shown."""
        show, self._show = self._show, None
        with self._ending_on_failure():
            if show is not None:
                self._bar = show(total=total)
                self._bar.start_t -= self.elapsed

    @contextlib.contextmanager
    def _ending_on_failure(self) -> Iterator[None]:
        """Drop the bar if drawing it raises."""
        try:
            yield
        except Exception:  # the stream is the user's and may raise anything
            bar, self._bar = self._bar, None
            if bar is not None:
                bar.disable = True  # or it would write once more when it is collected


class _Bar(tqdm):
    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        """As tqdm's own, which would hold the lock of all bars forever if its stream raised."""
        with self.get_lock():
            super().refresh(nolock=True, lock_args=lock_args)
