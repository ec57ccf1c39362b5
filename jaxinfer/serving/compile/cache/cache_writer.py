"""Writes compiled programs to JAX's compilation cache on threads of their own.

JAX writes an entry in the thread that compiled it, and making one holds Python's lock for 0.1 to
0.4 s. Threads that compile side by side finish together, so each waits for the others' entries
before it can begin its next program, and the other cores are idle meanwhile.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jax._src import compiler

from jaxinfer.serving.threads.late_work import submit_or_do

# One makes an entry, and one compresses the last one, for which Python's lock is free.
_THREADS = 2


@contextlib.contextmanager
def written_in_background() -> Iterator[None]:
    """Write entries in background threads inside this block; all are on disk afterwards.

    One thread at a time may be inside; others may compile programs meanwhile. If JAX writes its
    cache in a way that this file does not know, it keeps doing so.

    Raises:
        Exception: JAX's error of a write, if `jax_raise_persistent_cache_errors` is set.
    """
    write = getattr(compiler, "_cache_write", None)
    if write is None:
        yield
        return
    writes: list[Future[None]] = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="jaxinfer-cache") as pool:

        def write_soon(*args: Any, **kwargs: Any) -> None:
            writes.append(submit_or_do(pool, write, *args, **kwargs))

        compiler._cache_write = write_soon
        try:
            yield
        except BaseException:  # Ctrl-C, too: entries not begun are compiled again next time
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            compiler._cache_write = write
    for written in writes:
        written.result()
