"""Counts programs found on disk, to tell warm starts from cold ones."""

from types import TracebackType

import jax.monitoring

from jaxinfer.serving.compile.cache.executable_store import FOUND_EVENT

_HITS = ("/jax/compilation_cache/cache_hits", FOUND_EVENT)
_PROBE_EVENT = "/jaxinfer/is_listening"


class CacheHits:
    """Counts inside a ``with`` block; JAX's listeners are global.

    Attributes:
        count: compiled programs found, in JAX's cache or the engines' own.

    Raises:
        RuntimeError: at the end of a block in which JAX's listeners were removed, because a
            warm start would pass for a cold one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._num_probes = 0
        self._listener = self._listen  # one object: unregistering goes by identity

    def __enter__(self) -> "CacheHits":
        jax.monitoring.register_event_listener(self._listener)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        before = self._num_probes
        jax.monitoring.record_event(_PROBE_EVENT)
        if self._num_probes > before:
            jax.monitoring.unregister_event_listener(self._listener)
        elif error is None:
            raise RuntimeError(
                "programs found in the compilation cache can't be counted: JAX's listeners were "
                "removed meanwhile (jax.monitoring.clear_event_listeners); leave them alone while "
                "measuring"
            )

    def _listen(self, event: str, **kwargs: str | int) -> None:
        self.count += event in _HITS
        self._num_probes += event == _PROBE_EVENT
