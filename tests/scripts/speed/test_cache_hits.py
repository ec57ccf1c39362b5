import jax
import jax.numpy as jnp
import pytest

from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache
from scripts.speed.cache_hits import CacheHits


@pytest.fixture(autouse=True)
def own_listeners(monkeypatch):
    """JAX's listeners in a list of their own, so that a test may remove them all."""
    for kind in ("event", "event_duration_secs", "event_time_span", "scalar"):
        monkeypatch.setattr(f"jax._src.monitoring._{kind}_listeners", [])


def _compile():
    jax.clear_caches()  # as a new process would begin
    jax.jit(lambda x: x * 3 + 2).lower(jax.ShapeDtypeStruct((5,), jnp.float32)).compile()


def test_programs_found_on_disk_are_counted(tmp_path):
    with persistent_cache(str(tmp_path)), CacheHits() as cold:
        _compile()
    # Entries are written beside the program; at the end of the block above they are there.
    with persistent_cache(str(tmp_path)), CacheHits() as warm:
        _compile()
        with CacheHits():
            pass
    assert (cold.count, warm.count) == (0, 1)


def test_a_warm_start_never_passes_for_a_cold_one(tmp_path):
    with persistent_cache(str(tmp_path)):
        _compile()
        with pytest.raises(RuntimeError, match="clear_event_listeners"):
            _count_without_listeners(_compile)


def test_an_error_of_the_block_is_not_hidden_by_the_lost_count():
    with pytest.raises(KeyError):
        _count_without_listeners({}.popitem)


def _count_without_listeners(block):
    with CacheHits():
        jax.monitoring.clear_event_listeners()
        block()
