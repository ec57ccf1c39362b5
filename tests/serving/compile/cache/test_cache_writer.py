import threading
import time

import jax
import jax.numpy as jnp
import pytest
from jax._src import compiler

from jaxinfer.serving.compile.cache.cache_writer import written_in_background
from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache


def _compile(size):
    return jax.jit(lambda x: x * 3 - 1).lower(jax.ShapeDtypeStruct((size,), jnp.float32)).compile()


@pytest.fixture
def writes(monkeypatch):
    """The threads that wrote, with JAX's own writing slowed down."""
    threads, write = [], compiler._cache_write

    def slow(*args, **kwargs):
        time.sleep(0.2)
        write(*args, **kwargs)
        threads.append(threading.current_thread().name)

    monkeypatch.setattr(compiler, "_cache_write", slow)
    return threads


def test_entries_are_written_beside_the_compiling_thread_and_are_there_afterwards(tmp_path, writes):
    with persistent_cache(str(tmp_path)):
        for size in (3, 5, 7):
            _compile(size)
        assert len(writes) < 3
    assert len(writes) == 3
    assert all(name.startswith("jaxinfer-cache") for name in writes)
    assert len(list(tmp_path.glob("*-cache"))) == 3


def test_an_interrupt_leaves_what_has_not_begun_to_be_written(tmp_path, writes):
    before = compiler._cache_write

    def interrupted():
        with persistent_cache(str(tmp_path)):
            for size in range(10, 18):
                _compile(size)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(writes) < 8
    assert compiler._cache_write is before


def test_what_a_write_raises_is_raised(monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(compiler, "_cache_write", refuse)
    with pytest.raises(OSError, match="no space left"), written_in_background():
        compiler._cache_write("key", 1.0, "name", None, None)


def test_a_jax_that_writes_otherwise_is_left_alone(monkeypatch):
    monkeypatch.delattr(compiler, "_cache_write")
    with written_in_background():
        assert not hasattr(compiler, "_cache_write")
