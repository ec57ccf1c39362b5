"""Work is done in its order, and as long as anything may be submitted."""

import contextlib
import gc
import subprocess
import sys
import threading
import time

import pytest

from jaxinfer.serving.threads.worker_thread import WorkerThread

TIMEOUT_S = 20


@pytest.fixture
def worker():
    worker = WorkerThread("worker")
    yield worker
    worker.close()


def test_work_is_done_in_its_order_in_either_thread(worker):
    done = []
    runs = [worker.submit, worker.submit, worker.run]
    futures = [runs[i % 3](done.append, i) for i in range(100)]
    worker.wait()
    assert done == [*range(100)]
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("name", ["submit", "run"])
def test_what_is_raised_is_the_future_s(worker, name):
    futures = [getattr(worker, name)(lambda x: 1 // x, i) for i in (1, 0, 2)]
    worker.wait()
    assert futures[0].result() == 1
    with pytest.raises(ZeroDivisionError):
        futures[1].result()
    assert futures[2].result() == 0


def test_nobody_waits_longer_than_said(worker):
    release = threading.Event()
    future = worker.submit(release.wait, TIMEOUT_S)
    worker.wait(0.01)
    worker.close(0.01)
    assert not future.done()
    release.set()
    worker.close()
    assert future.result()


def test_the_thread_is_within_a_context():
    names = []

    @contextlib.contextmanager
    def within():
        names.append(threading.current_thread().name)
        yield
        names.append("left")

    worker = WorkerThread("worker", within)
    names += [worker.submit(lambda: threading.current_thread().name).result() for _ in range(2)]
    worker.close()
    assert names == ["worker"] * 3 + ["left"]


def test_closing_ends_the_thread_after_what_was_submitted():
    before = threading.active_count()
    worker = WorkerThread("worker")
    release = threading.Event()
    future = worker.submit(release.wait, TIMEOUT_S)
    assert threading.active_count() == before + 1
    release.set()
    worker.close()
    worker.close()
    assert future.result()
    assert threading.active_count() == before
    worker.wait()
    with pytest.raises(RuntimeError, match="the thread worker is closed"):
        worker.submit(print)


def test_the_thread_ends_with_the_last_reference_to_it():
    before = threading.active_count()
    worker = WorkerThread("worker")
    worker.submit(print).result()
    del worker
    gc.collect()
    deadline = time.monotonic() + TIMEOUT_S
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


_ENDS = """
import atexit, threading, time
from jaxinfer.serving.threads.worker_thread import WorkerThread

def close():
    print(worker.submit(lambda: "at the end").result())
    worker.close()

def work():
    threading.main_thread().join()
    print(worker.submit(lambda: "later").result())

atexit.register(close)
worker = WorkerThread("worker")
threading.Thread(target=work).start()
print("main ends", flush=True)
"""


def test_work_is_taken_until_python_ends():
    """A pool of `concurrent.futures` takes none after the main thread's end."""
    command = [sys.executable, "-c", _ENDS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "main ends\nlater\nat the end\n"
    assert result.stderr == ""


def test_a_context_that_cannot_be_entered_fails_what_is_submitted():
    @contextlib.contextmanager
    def within():
        raise ValueError("no such setting")
        yield

    thread = WorkerThread("a worker", within)
    with pytest.raises(ValueError, match="no such setting"):
        thread.submit(lambda: 1).result(10)
    thread.wait(10)
    thread.close(10)
