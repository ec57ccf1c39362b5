"""Compiles an engine's programs, ahead in parallel or each at its first use, and counts them."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import jax
import jax.monitoring

from jaxinfer.cores import usable_cores
from jaxinfer.progress import ProgressBar
from jaxinfer.serving.compile.cache.executable_store import (
    LOAD_EVENT,
    UnreadableExecutableError,
)
from jaxinfer.serving.compile.compile_notice import compile_notice
from jaxinfer.serving.compile.jax_settings import JaxSettings
from jaxinfer.serving.threads.late_work import submit_or_do

_EVENTS = ("/jax/core/compile/backend_compile_duration", LOAD_EVENT)
_PROBE_EVENT = "/jaxinfer/is_listening"


class CompilationCounter:
    """Counts the programs that XLA builds in this process, for any caller.

    A program found on disk counts too: it was not yet in this process. Call
    `close` when done; JAX's listeners are global.

    Attributes:
        seconds: their compile time, as far as JAX's listeners were left alone.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0
        self._num_calls = 0
        self._lock = threading.Lock()
        self._listener = self._listen  # one object: unregistering goes by identity
        jax.monitoring.register_event_duration_secs_listener(self._listener)

    @property
    def count(self) -> int:
        """Programs so far.

        Raises:
            RuntimeError: JAX's listeners were removed by other code, so programs may have gone
                uncounted. Counting begins again, and later reads return the known part.
        """
        if self._listener is not None and not self._is_heard():
            jax.monitoring.register_event_duration_secs_listener(self._listener)
            raise RuntimeError(
                "the number of compiled programs is not known: JAX's listeners were removed "
                "(jax.monitoring.clear_event_listeners); it is counted on from here, so read it "
                "again and compare with that"
            )
        return self._count

    def close(self) -> None:
        """Stop counting; may be called again."""
        if self._listener is not None:
            # JAX raises if other code has removed all listeners; nothing is left to do then.
            with contextlib.suppress(AssertionError, ValueError):
                jax.monitoring.unregister_event_duration_listener(self._listener)
            self._listener = None

    def _is_heard(self) -> bool:
        """True if JAX still calls the listener; JAX has no function for that."""
        before = self._num_calls
        jax.monitoring.record_event_duration_secs(_PROBE_EVENT, 0.0)
        return self._num_calls > before

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        with self._lock:
            self._num_calls += 1
            if event in _EVENTS:
                self._count += 1
                self.seconds += duration_secs


class Lowered(Protocol):
    """A program that XLA can compile: `jax.stages.Lowered`, or one that may be found compiled."""

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Compile it, or read its executable from disk.

        Raises:
            UnreadableExecutableError: the entry can't be read; the program must be lowered anew.
        """
        ...


class CompiledPrograms[Key: Hashable](dict[Key, jax.stages.Compiled]):
    """A dictionary of executables that compiles a missing one when it is looked up.

    Call `close` if a `begin` is never followed by `compile`.

    Args:
        lower: traces and lowers one key's program, to be compiled with these options.
        options: XLA's options for one key's program.
        caching: a context manager inside which compiled programs are kept on disk.
        says_so: write to stderr when a step waits for a program at its first use.

    Attributes:
        seconds_waited: total time of such waits.
    """

    def __init__(
        self,
        lower: Callable[[Key, dict[str, Any]], Lowered],
        options: Callable[[Key], dict[str, Any]],
        caching: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        *,
        says_so: bool = False,
    ) -> None:
        super().__init__()
        self.seconds_waited = 0.0
        self._says_so = says_so
        self._lower = lower
        self._options = options
        self._caching = caching
        self._compiling: dict[Key, Future[jax.stages.Compiled]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __missing__(self, key: Key) -> jax.stages.Compiled:
        """Compile an executable that a step waits for."""
        self.compile_now([key])
        return self[key]

    def compile_now(self, keys: Sequence[Key]) -> None:
        """Compile executables that a step waits for, side by side."""
        missing = [key for key in dict.fromkeys(keys) if key not in self]
        start = time.perf_counter()
        with compile_notice(len(missing), enabled=self._says_so):
            self.compile(missing, show_progress=False)
        self.seconds_waited += time.perf_counter() - start

    def adopt(self, other: "CompiledPrograms[Key]", keys: Iterable[Key]) -> None:
        """Take over the `keys` that another has compiled or begun, which begins nothing more."""
        for key in keys:
            if key in other:
                self[key] = other[key]
            elif key in other._compiling:
                self._compiling[key] = other._compiling.pop(key)
        self._pool = other._pool

    def begin(self, keys: Iterable[Key]) -> None:
        """Lower missing programs one by one on this thread; XLA compiles them meanwhile.

        The caller must stay inside `caching` until `compile` has returned for all of them;
        otherwise JAX's cache does not keep them.
        """
        for key in keys:
            if key not in self:
                self._begin(key)

    def compile(self, keys: Sequence[Key], *, show_progress: bool) -> None:
        """Compile the missing programs; arguments as of `compile_each`."""
        for _ in self.compile_each(keys, show_progress=show_progress):
            pass

    def compile_each(
        self,
        keys: Sequence[Key],
        *,
        show_progress: bool,
        in_order: Callable[[Sequence[Key]], Iterable[Key]] = iter,
    ) -> Generator[Key]:
        """Compile the missing programs: lowering one by one on this thread, XLA on all cores.

        Args:
            keys: the programs wanted; others that were begun go on compiling.
            in_order: yields the missing ones in the order in which to lower them.

        Yields:
            Each key, once its program is there. All have begun when the first is yielded.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self]
        if not missing:
            yield from dict.fromkeys(keys)
            return
        bar = ProgressBar(len(missing), "Compiling", enabled=show_progress, unit="program")
        with bar, self._caching():
            try:
                for key in in_order(missing):
                    self._begin(key).add_done_callback(lambda _: bar.update())
                for key in dict.fromkeys(keys):
                    if key not in self:
                        self[key] = self._result(key)
                    yield key
            except BaseException:  # Ctrl-C, too
                self.close()
                raise
            if not self._compiling:
                self._shut_down(wait=True)  # until the bar is complete

    def close(self) -> None:
        """Forget programs still compiling; none begins from here on. May be called again."""
        self._compiling.clear()
        self._shut_down(wait=False)

    def _begin(self, key: Key) -> "Future[jax.stages.Compiled]":
        if key not in self._compiling:
            options = self._options(key)
            lowered = self._lower(key, options)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_num_threads())
            work = (_compile, lowered, options or None, JaxSettings.here())
            self._compiling[key] = submit_or_do(self._pool, *work)
        return self._compiling[key]

    def _result(self, key: Key) -> jax.stages.Compiled:
        """Wait for a program that was begun; here, on the thread that may lower, it begins anew."""
        try:
            compiled = self._compiling[key].result()
        except UnreadableExecutableError:
            del self._compiling[key]
            compiled = self._begin(key).result()
        del self._compiling[key]
        return compiled

    def _shut_down(self, *, wait: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
            self._pool = None


def _compile(
    lowered: Lowered, options: dict[str, Any] | None, settings: JaxSettings
) -> jax.stages.Compiled:
    with settings.held():
        return lowered.compile(compiler_options=options)


def _num_threads() -> int:
    """The number of compiler threads: one for each core, and a few on a single core.

    More would not help: Mosaic compiles one kernel at a time, and never while XLA runs LLVM for any
    program, so that each kernel waits the longer the more programs compile at once.
    """
    return max(4, usable_cores())
