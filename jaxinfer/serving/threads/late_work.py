"""Work for pools of threads, which take none once the main thread has ended."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


def submit_or_do[**P, T](
    pool: ThreadPoolExecutor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> Future[T]:
    """Have a pool do some work, or do it here if the pool takes none; the future is done then."""
    try:
        return pool.submit(work, *args, **kwargs)
    except RuntimeError:
        future: Future[T] = Future()
    try:
        future.set_result(work(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future
