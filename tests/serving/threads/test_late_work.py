"""Pools that take no more work leave it to the caller."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxinfer.serving.threads.late_work import submit_or_do


def test_work_is_done_by_the_pool_or_by_the_caller():
    pool, me = ThreadPoolExecutor(1), threading.current_thread()
    assert submit_or_do(pool, threading.current_thread).result() is not me
    pool.shutdown()
    assert submit_or_do(pool, threading.current_thread).result() is me
    with pytest.raises(ZeroDivisionError):
        submit_or_do(pool, divmod, 1, 0).result()
