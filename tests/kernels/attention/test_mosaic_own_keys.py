"""The walk over rows' own keys: every pair once, long rows first, and where their keys lie."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.mosaic.join import own_rows
from jaxinfer.kernels.attention.mosaic.own_keys import num_rounds, pair_of
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes


def _visited(pairs, blocks):
    """The pairs of every block, in its order."""
    block = jnp.arange(blocks)
    rounds = np.asarray(num_rounds(block, pairs, blocks))
    turns = np.asarray([pair_of(block, jnp.int32(i), pairs, blocks) for i in range(max(rounds))])
    return [turns[: rounds[i], i].tolist() for i in range(blocks)]


@pytest.mark.parametrize("pairs", [1, 6, 7, 8, 13, 14, 21, 23, 56])
def test_blocks_visit_every_pair_once(pairs):
    visited = _visited(pairs, 7)
    assert sorted(pair for each in visited for pair in each) == list(range(pairs))


def test_blocks_have_like_amounts_of_work_when_pairs_come_longest_first():
    lengths = np.sort(np.random.default_rng(0).integers(1, 1600, 256))[::-1].repeat(8)
    work = [sum(lengths[pair] for pair in each) for each in _visited(len(lengths), 264)]
    # The least possible spread is that of a block with one pair less.
    assert max(work) < 1.05 * np.mean(work)


def test_own_keys_begin_where_shared_ones_end():
    lens = jnp.asarray([70, 200, 0, 130], jnp.int32)
    tables = jnp.arange(4 * 16, dtype=jnp.int32).reshape(4, 16)
    # Keys, first item, items, place; the third row has ended and still has them.
    shared_rows = jnp.asarray(
        [[64, 0, 1, 0], [64, 0, 1, 1], [64, 0, 1, 2], [0, 0, 0, 0]], jnp.int32
    )
    shared = SharedPrefixes(jnp.ones(1, jnp.int32), jnp.zeros((4, 4), jnp.int32), shared_rows)
    own, own_tables, rows = map(np.asarray, own_rows(lens, tables, shared, page_size=16))
    assert own.tolist() == [136, 130, 6, 0]
    assert rows.tolist() == [[1, 0, 1, 1], [3, 0, 0, 0], [0, 0, 1, 0], [2, 0, 0, 0]]
    # Four pages are shared; past the end of the table its last page stands in.
    assert own_tables[0].tolist() == [*range(20, 32), *[31] * 4]
    assert own_tables[1].tolist() == list(range(48, 64))
    assert own_tables[2, :2].tolist() == [4, 5]
