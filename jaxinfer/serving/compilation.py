"""Compiled programs by key, all ahead in parallel or each at its first use; and their count."""

import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, Protocol

import jax
import jax.monitoring
from tqdm import tqdm

from jaxinfer.serving.compile_cache import persistent_cache

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompilationCounter:
    """Counts the programs that XLA builds in this process, whoever asks for them.

    A program found in the persistent cache counts too: it was not yet in this process. Call
    `close` when done; JAX's listeners are global.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._lock = threading.Lock()
        self._listener = self._listen  # one object: unregistering goes by identity
        jax.monitoring.register_event_duration_secs_listener(self._listener)

    def close(self) -> None:
        """Stop counting; may be called again."""
        if self._listener is not None:
            jax.monitoring.unregister_event_duration_listener(self._listener)
            self._listener = None

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILE_EVENT:
            with self._lock:
                self.count += 1
                self.seconds += duration_secs


class Lowered(Protocol):
    """What XLA can compile: `jax.stages.Lowered`, or such a one with its devices."""

    def compile(self, compiler_options: dict[str, Any] | None = None) -> jax.stages.Compiled:
        """Compile it."""
        ...


class CompiledPrograms[Key: Hashable]:
    """Executables by key.

    Args:
        lower: traces and lowers one key's program.
        options: XLA's options for one key's program.
        cache_directory: as in `compile_cache.persistent_cache`.
    """

    def __init__(
        self,
        lower: Callable[[Key], Lowered],
        options: Callable[[Key], dict[str, Any]],
        cache_directory: str | None,
    ) -> None:
        self._lower = lower
        self._options = options
        self._cache_directory = cache_directory
        self._compiled: dict[Key, jax.stages.Compiled] = {}

    def __getitem__(self, key: Key) -> jax.stages.Compiled:
        """The executable; compiled now if it was not yet."""
        compiled = self._compiled.get(key)
        if compiled is None:
            self.compile([key], show_progress=False)
            compiled = self._compiled[key]
        return compiled

    def both(self, first: Key, second: Key) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
        """Two executables that run after each other; those missing are compiled side by side."""
        if first not in self._compiled or second not in self._compiled:
            self.compile([first, second], show_progress=False)
        return self._compiled[first], self._compiled[second]

    def adopt(self, compiled: Mapping[Key, jax.stages.Compiled]) -> None:
        """Take over programs that were compiled elsewhere."""
        self._compiled.update(compiled)

    def compile(self, keys: Sequence[Key], *, show_progress: bool) -> None:
        """Compile what is missing: tracing in order on this thread, XLA on all cores.

        Args:
            keys: the programs wanted.
            show_progress: a progress bar on stderr.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self._compiled]
        if not missing:
            return
        bar = tqdm(total=len(missing), desc="Compiling", unit="program", disable=not show_progress)
        workers = min(len(missing), os.cpu_count() or 1)
        with persistent_cache(self._cache_directory), ThreadPoolExecutor(workers) as pool, bar:
            futures: dict[Future[jax.stages.Compiled], Key] = {}
            try:
                for key in missing:
                    lowered, options = self._lower(key), self._options(key)
                    # compile() reads JAX's global settings only, so any thread may run it.
                    future = pool.submit(lowered.compile, compiler_options=options or None)
                    future.add_done_callback(lambda _: bar.update())
                    futures[future] = key
                for future in as_completed(futures):
                    self._compiled[futures[future]] = future.result()
            finally:
                # Ctrl-C: what has not begun never begins.
                pool.shutdown(wait=False, cancel_futures=True)
