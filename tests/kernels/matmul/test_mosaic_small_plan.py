"""Every product that the small kernels take is cut into blocks that fit a multiprocessor."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.kernels.matmul.mosaic.small_plan import TILE, choose_config, make_plan, supports

_SHARED_BYTES = 227 * 1024  # that a block of threads may have on Hopper
# E, query features, key features, F of Qwen3 models.
_MODELS = {
    "0.6B": (1024, 2048, 1024, 3072),
    "1.7B": (2048, 2048, 1024, 6144),
    "4B": (2560, 4096, 1024, 9728),
    "8B": (4096, 4096, 1024, 12288),
    "14B": (5120, 5120, 1024, 17408),
    "32B": (5120, 8192, 1024, 25600),
}


def _products(model, devices=1):
    E, Q, K, F = _MODELS[model]
    Q, K, F = Q // devices, K // devices, F // devices
    return {
        "qkv": ("plain", [(Q, E), (K, E), (K, E)]),
        "o": ("residual", [(E, Q)]),
        "gated": ("gated", [(F, E), (F, E)]),
        "down": ("residual", [(E, F)]),
    }


@pytest.mark.parametrize("B", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("model", _MODELS)
def test_slices_cover_the_contraction_and_blocks_fit(model, devices, B):
    taken = 0
    for kind, shapes in _products(model, devices).values():
        if not supports(B, shapes, "bfloat16"):
            continue
        plan = make_plan(kind, B, shapes, 1e-6, None)
        assert plan.chunks * plan.chunk * plan.splits == shapes[0][1]
        assert plan.tiles * TILE == sum(plan.outputs)
        assert plan.splits <= 8
        assert plan.shared_bytes <= _SHARED_BYTES
        taken += 1
    assert taken >= 3


@pytest.mark.parametrize("model", _MODELS)
def test_whole_models_take_every_product_up_to_sixteen_rows(model):
    for _, shapes in _products(model).values():
        assert supports(16, shapes, "bfloat16")
        assert not supports(32, shapes, "bfloat16")


@pytest.mark.parametrize(
    ("size", "matrices", "tiles", "splits"),
    [
        (4096, 2, 96, 1),  # One wave, no cluster: gate and up of a half of 8B.
        (4096, 2, 192, 2),  # More tiles than multiprocessors: of 8B.
        (6144, 1, 64, 2),  # Too few blocks without: down of a half of 8B.
        (6144, 1, 32, 3),  # And with two: down of 1.7B.
        (1024, 1, 64, 1),  # As few, but each asks for its whole slice at once: q, k, v of 0.6B.
    ],
)
def test_as_few_blocks_share_a_tile_as_occupy_half_the_chip(size, matrices, tiles, splits):
    config = choose_config(2, size, matrices, tiles)
    assert config.splits == splits
    ring = config.stages * config.chunk * matrices * TILE * 2
    assert 64 * 1024 <= ring <= 128 * 1024


@pytest.mark.parametrize(
    ("size", "tiles", "splits", "stages"),
    [
        (4096, 32, 4, 4),  # o of 30B-A3B: 6.4 us, and 8.9 with six stages.
        (12288, 64, 2, 6),  # down of 8B.
    ],
)
def test_blocks_of_large_clusters_have_less_in_flight(size, tiles, splits, stages):
    config = choose_config(8, size, 1, tiles)
    assert (config.splits, config.stages) == (splits, stages)


@given(
    B=st.sampled_from([1, 2, 4, 8, 16]),
    size=st.integers(1, 500).map(lambda n: n * TILE),
    features=st.lists(st.integers(1, 500).map(lambda n: n * TILE), min_size=1, max_size=3),
    gated=st.booleans(),
)
def test_whatever_is_taken_fits_a_multiprocessor(B, size, features, gated):
    shapes = [(features[0], size)] * 2 if gated else [(n, size) for n in features]
    if not supports(B, shapes, "bfloat16"):
        return
    plan = make_plan("gated" if gated else "plain", B, shapes, 1e-6, None)
    assert plan.chunks * plan.chunk * plan.splits == size
    assert 1 <= plan.stages <= plan.chunks
    # Barriers, alignment and what is written out come on top.
    assert plan.shared_bytes <= _SHARED_BYTES - 4 * 1024
