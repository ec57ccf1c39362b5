"""What `large_plan.choose` takes is what `large.py` can build, and each tile is computed once."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic import large_plan
from jaxinfer.kernels.matmul.mosaic.large_plan import SHARED_BYTES, LargeConfig, LargePlan, choose
from jaxinfer.kernels.matmul.weight_form import WeightForm
from jaxinfer.kernels.mosaic import registers

_FORM = WeightForm(FP8, is_grouped=True, inputs="group")
_SIZES = st.integers(1, 200).map(lambda n: 128 * n)


def _problem(M, shapes, matrices, config):
    outputs = tuple(features for features, _ in shapes[::matrices])
    return LargePlan(M, shapes[0][1], outputs, matrices, jnp.dtype("bfloat16"), config)


@given(
    M=st.integers(17, 4096).map(lambda n: 8 * n),
    outputs=st.lists(_SIZES, min_size=1, max_size=3),
    size=_SIZES,
    gated=st.booleans(),
)
def test_every_product_of_this_form_is_taken_and_can_be_built(M, outputs, size, gated):
    shapes = [(n, size) for n in (outputs[:1] * 2 if gated else outputs)]
    config = choose(M, shapes, _FORM)
    assert config is not None
    _problem(M, shapes, 2 if gated else 1, config).check()
    assert config.shared_bytes <= SHARED_BYTES
    assert config.blocks <= 2  # Others would not all run at once.


_LAYER = {"qkv": (4096, 1024, 1024), "o": (4096,), "gate": (12288, 12288)}


@pytest.mark.parametrize(
    ("M", "of_three"),
    [(136, []), (256, []), (2048, []), (4096, ["qkv", "gate"]), (16384, [*_LAYER])],
)
def test_three_consumers_take_many_rows_where_registers_move_to_them(M, of_three, monkeypatch):
    """As in the trial of 256, 2,048 and 16,384 rows."""
    for movable in (True, False):
        monkeypatch.setattr(registers, "can_be_moved", lambda movable=movable: movable)
        for name, outputs in _LAYER.items():
            config = choose(M, [(features, 4096) for features in outputs], _FORM)
            assert config is not None
            is_of_three = movable and name in of_three
            assert config.consumers == (3 if is_of_three else 2)
            assert config.in_turn == (movable and not is_of_three)


@pytest.mark.parametrize(
    ("M", "outputs", "size", "config"),
    [
        (64, (12288, 12288), 4096, None),
        (72, (12288, 12288), 4096, LargeConfig(share_weights=1, share_rows=2)),
        (128, (4096, 1024, 1024), 4096, None),
        (192, (4096,), 12288, LargeConfig(share_weights=1, splits=2)),
        (192, (4096,), 4096, LargeConfig(share_weights=1, splits=2)),
        (192, (4096,), 2048, LargeConfig()),
        (192, (6144,), 12288, LargeConfig()),
        (192, (2048, 2048), 12288, LargeConfig()),
        (264, (4096,), 12288, LargeConfig()),
    ],
)
def test_few_rows_have_a_tile_a_block_or_half_of_one(M, outputs, size, config, monkeypatch):
    for movable in (True, False):
        monkeypatch.setattr(registers, "can_be_moved", lambda movable=movable: movable)
        wanted = config and dataclasses.replace(config, in_turn=movable)
        assert choose(M, [(features, size) for features in outputs], _FORM) == wanted


@pytest.mark.parametrize(
    ("M", "size", "form"),
    [
        (128, 1024, _FORM),
        (516, 1024, _FORM),
        (512, 1024 + 64, _FORM),
        (512, 1024, None),
        (512, 1024, dataclasses.replace(_FORM, inputs=None)),
        (512, 1024, dataclasses.replace(_FORM, is_known=False)),
        (512, 1024, dataclasses.replace(_FORM, dtype=jnp.dtype("int8"))),
    ],
)
def test_other_rows_sizes_and_forms_are_left_to_other_kernels(M, size, form):
    assert choose(512, [(2048, 1024)], _FORM) is not None
    assert choose(M, [(2048, size)], form) is None


@pytest.mark.parametrize(
    ("M", "outputs", "config", "matrices"),
    [
        (2048, (1024, 256, 128), LargeConfig(), 1),
        (1096, (384, 128), LargeConfig(share_weights=1, share_rows=2, swath=3), 1),
        (4104, (384,), LargeConfig(share_weights=2, consumers=3, swath=4), 2),
        (264, (128,), LargeConfig(share_weights=1, swath=16), 2),
    ],
)
def test_blocks_take_every_tile_once_and_clusters_take_neighbours(
    M, outputs, config, matrices, monkeypatch
):
    p = _problem(M, [(n, 128) for n in outputs for _ in range(matrices)], matrices, config)
    axes = [range(config.share_weights), range(config.share_rows)]
    taken = []
    monkeypatch.setattr(large_plan, "MULTIPROCESSORS", 6)
    for cluster, row, column in itertools.product(range(p.clusters), *axes):
        place = {"cluster": cluster, "row": row, "column": column}
        with monkeypatch.context() as patch:
            patch.setattr(lax, "axis_index", lambda name, place=place: jnp.int32(place[name]))
            first, tile = jax.vmap(p.tile)(jnp.arange(int(p.count), dtype=jnp.int32))
        taken += zip(np.asarray(first) // p.rows, np.asarray(tile), strict=True)
    rows, columns = p.tiles
    rows, columns = rows * config.share_weights, columns * config.share_rows
    assert sorted(taken) == list(itertools.product(range(rows), range(columns)))
    assert rows * p.rows >= M > (rows - config.share_weights) * p.rows
    assert columns * p.features >= sum(outputs) > (columns - config.share_rows) * p.features
