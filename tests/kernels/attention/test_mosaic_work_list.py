"""The prefill work list covers every packed query once, whatever the lengths."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.mosaic.work_list import Field, work_list


def _lines(T, queries, contexts, tile, window=None):
    offsets = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    lines, count = work_list(
        T, jnp.asarray(offsets), jnp.asarray(contexts, jnp.int32), tile, window
    )
    return np.asarray(lines)[: int(count[0])], offsets


@pytest.mark.parametrize("tile", [64, 128])
@pytest.mark.parametrize("seed", range(5))
def test_every_query_belongs_to_exactly_one_tile_of_its_sequence(tile, seed):
    rng = np.random.default_rng(seed)
    queries = rng.integers(0, 200, rng.integers(1, 12))
    contexts = np.where(queries > 0, queries + rng.integers(0, 300, queries.size), 0)
    T = int(queries.sum()) + int(rng.integers(0, 40))
    lines, offsets = _lines(T, queries, contexts, tile)
    covered = np.zeros(T, int)
    for line in lines:
        begin, end, first = line[Field.BEGIN], line[Field.END], line[Field.FIRST_EIGHTH] * 8
        covered[begin:end] += 1
        assert first <= begin
        assert end <= first + tile <= max(-(-T // 8) * 8, tile), "inside the padded queries"
        if begin < offsets[-1]:
            row = line[Field.ROW]
            assert offsets[row] <= begin < end <= offsets[row + 1]
            assert line[Field.LENGTH] == contexts[row]
            last_position = end - 1 + line[Field.SHIFT]
            assert last_position == contexts[row] - (offsets[row + 1] - end) - 1
            assert line[Field.END_KEY] == last_position + 1
        else:
            assert line[Field.END_KEY] == 0, "padding sees no key"
    assert (covered == 1).all()


def test_longest_tiles_come_first():
    lines, _ = _lines(700, [100, 500, 100], [100, 500, 2000], 64)
    keys = lines[:, Field.END_KEY] - lines[:, Field.FIRST_KEY]
    assert (np.diff(keys) <= 0).all()


def test_window_drops_keys_no_query_of_the_tile_sees():
    lines, _ = _lines(64, [64], [1000], 64, window=100)
    assert lines[0, Field.FIRST_KEY] == 1000 - 64 - 100 + 1
    assert lines[0, Field.END_KEY] == 1000
