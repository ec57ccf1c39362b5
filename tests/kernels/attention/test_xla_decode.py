import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention import xla_decode as reference_decode
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.xla_decode import paged_decode_attention

H, K, D, KEYS = 4, 2, 64, 1152


@pytest.fixture(scope="module")
def pools():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(KEYS, K, D)), jnp.float32) for _ in range(2)]


@functools.cache
def _op(window):
    return jax.jit(functools.partial(paged_decode_attention, scoring=Scoring(1.0, window)))


def _attend(pools, lens, order, *, block_size=16, window=None):
    """Decode rows that see the first `lens` keys, packed in this order; results in that of lens."""
    queries = np.random.default_rng(1).normal(size=(len(lens), H, D)).astype(np.float32)
    pages = Pages(*(pool.reshape(-1, block_size, K, D) for pool in pools))
    tables = np.tile(np.arange(KEYS // block_size, dtype=np.int32), (len(order), 1))
    rows = PagedRows(np.asarray(lens, np.int32)[order], tables)
    out = np.asarray(_op(window)(queries[order], pages, rows))
    return out[np.argsort(order)]


@pytest.mark.parametrize("window", [None, 100], ids=["all", "window"])
def test_batch_mates_never_change_a_bit_wherever_tiles_begin(pools, window):
    # Tiles hold 64 keys of one row and 320 of five, and begin elsewhere in each order.
    lens = [333, 1100, 700, 0, 47]
    alone = _attend(pools, lens[:1], [0], window=window)
    before = _attend(pools, lens, [0, 1, 2, 3, 4], window=window)
    behind = _attend(pools, lens, [2, 4, 0, 3, 1], window=window)
    np.testing.assert_array_equal(before, behind)
    np.testing.assert_array_equal(alone[0], before[0])


def test_page_size_never_changes_a_bit(pools):
    small, default, large = (
        _attend(pools, [333, 8, 17], [0, 1, 2], block_size=size) for size in (8, 16, 64)
    )
    np.testing.assert_array_equal(small, default)
    np.testing.assert_array_equal(large, default)


@pytest.mark.parametrize(("window", "counts"), [(None, [0, 1, 1, 2, 4]), (20, [0, 1, 1, 2, 2])])
def test_the_list_holds_the_chunks_that_are_seen_and_no_others(window, counts):
    chunks = reference_decode._list_chunks(jnp.array([0, 1, 32, 33, 100]), window)
    np.testing.assert_array_equal(chunks.counts, counts)
    np.testing.assert_array_equal(chunks.ends, np.cumsum(counts))
