"""Drops entries of JAX's compilation cache that can't be read, so that they are written anew.

JAX itself warns of such an entry, compiles, and leaves it: it never overwrites an entry, so one
    that a full disk or an interrupt has truncated would fail again at every start.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jax._src import compilation_cache

logger = logging.getLogger("jaxinfer")


@contextlib.contextmanager
def damaged_entries_dropped(directory: Path) -> Iterator[None]:
    """Delete entries that can't be read inside this block and treat them as missing; warns once.

    Args:
        directory: of the cache in use, which must have no other user. One thread at a time may
            be inside; programs may be compiled by others meanwhile.
    """
    read = compilation_cache.get_executable_and_time
    dropped: list[str] = []

    def read_or_drop(cache_key: str, *args: Any, **kwargs: Any) -> tuple[Any, int | None]:
        try:
            return read(cache_key, *args, **kwargs)
        except Exception:  # decompressing and deserializing raise exceptions of many types
            dropped.append(cache_key)
            with contextlib.suppress(OSError):
                (directory / f"{cache_key}-cache").unlink()
            return None, None

    compilation_cache.get_executable_and_time = read_or_drop
    try:
        yield
    finally:
        compilation_cache.get_executable_and_time = read
        if dropped:
            logger.warning(
                "%s: dropped %d damaged %s of the compilation cache; compiled anew",
                *(directory, len(dropped), "entry" if len(dropped) == 1 else "entries"),
            )
