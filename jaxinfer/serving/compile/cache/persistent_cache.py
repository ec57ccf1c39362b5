"""Directories of compiled and traced programs, and JAX's own cache while an engine compiles."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from jaxinfer.serving.compile.cache.cache_repair import damaged_entries_dropped
from jaxinfer.serving.compile.cache.cache_writer import written_in_background
from jaxinfer.serving.compile.cache.private_directory import make_private

ONE_AT_A_TIME = threading.RLock()
"""Held while an engine starts, and while JAX's cache, which is the process's, is switched on."""

# Everything is kept: a start-up compiles many programs, each of them quickly.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_enable_compilation_cache": True,
}


def default_directory() -> Path:
    """``$XDG_CACHE_HOME/jaxinfer/xla``, by default under ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home if home else Path.home() / ".cache") / "jaxinfer" / "xla"


@contextlib.contextmanager
def persistent_cache(directory: str | None) -> Iterator[Path | None]:
    """Keep programs compiled inside this block on disk, and find what earlier processes compiled.

    A cache that the user configured (``jax_compilation_cache_dir``, in any way) is used unchanged.
    In any other, unreadable entries are dropped and written anew. One thread at a time is inside.

    Args:
        directory: the directory; None is `default_directory`, "" keeps nothing.

    Yields:
        The directory in use. None if nothing is kept, also if the directory can't be made (an
        engine must start without a cache), or if others may write to it, because its content is
        run; a warning says so.
    """
    with ONE_AT_A_TIME:
        yield from _switched_on(directory)


def _switched_on(directory: str | None) -> Iterator[Path | None]:
    configured = jax.config.jax_compilation_cache_dir
    if configured is not None:
        yield Path(configured)
        return
    path = None if directory == "" else _made(directory)
    if path is None:
        yield None
        return
    before = {name: getattr(jax.config, name) for name in _SETTINGS}
    # JAX decides once whether it caches and where; reset_cache makes it decide again.
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", str(path))
    for name, value in _SETTINGS.items():
        jax.config.update(name, value)
    try:
        with damaged_entries_dropped(path), written_in_background():
            yield path
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def store_directory(directory: str | None, kind: str) -> Path | None:
    """The directory of an engine's own programs, below the compilation cache.

    Args:
        kind: of programs, "traced" or "compiled".

    Returns:
        A directory, or None where nothing is kept, or where the user's own cache is no local
        directory.
    """
    configured = jax.config.jax_compilation_cache_dir
    if configured is not None:
        return None if "://" in configured else Path(configured) / kind
    path = None if directory == "" else _made(directory)
    return path and _made(str(path / kind))


def _made(directory: str | None) -> Path | None:
    try:
        path = default_directory() if directory is None else Path(directory).expanduser()
        return path if make_private(path) and os.access(path, os.W_OK) else None
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
