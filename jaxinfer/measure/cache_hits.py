"""Counts compiled programs that came from the persistent cache: a cold start is not a warm one."""

from types import TracebackType

import jax.monitoring

_HIT = "/jax/compilation_cache/cache_hits"


class CacheHits:
    """Counts inside a ``with`` block; JAX's listeners are global.

    Attributes:
        count: programs found.
    """

    def __init__(self) -> None:
        self.count = 0
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
        jax.monitoring.unregister_event_listener(self._listener)

    def _listen(self, event: str, **kwargs: str | int) -> None:
        self.count += event == _HIT
