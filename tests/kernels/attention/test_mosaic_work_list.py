"""The prefill work list covers every packed query once, whatever the lengths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.attention.mosaic.work_list import Field, work_list

# Compiled as a whole: one operation at a time takes many times as long to compile.
_work_list = jax.jit(work_list, static_argnums=(0, 3, 4))


def _lines(T, queries, contexts, tile, window=None):
    offsets = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    lines, count = _work_list(
        T, jnp.asarray(offsets), jnp.asarray(contexts, jnp.int32), tile, window
    )
    return np.asarray(lines)[: int(count[0])], offsets


# Programs of three shapes, for any lengths: fewer tokens than a tile, and not whole eighths.
@pytest.mark.parametrize(("T", "tile"), [(61, 128), (1203, 64), (1203, 128)])
@pytest.mark.parametrize("seed", range(6))
def test_every_query_belongs_to_exactly_one_tile_of_its_sequence(T, tile, seed):
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, T + 1, 11))
    if seed == 0:
        cuts[-1] = T  # no padding
    if seed == 1:
        cuts[3:6] = cuts[3]  # rows without queries
    queries = np.diff(cuts, prepend=0)
    contexts = np.where(queries > 0, queries + rng.integers(0, 300, queries.size), 0)
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
