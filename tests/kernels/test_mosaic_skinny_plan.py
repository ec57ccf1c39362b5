"""Every product that the skinny kernels take is cut into blocks that fit a multiprocessor."""

import pytest

from jaxinfer.kernels.mosaic import skinny
from jaxinfer.kernels.mosaic.skinny_plan import TILE, make_plan, takes

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
        if not takes(B, shapes, "bfloat16"):
            continue
        plan = make_plan(kind, B, shapes, 1e-6, None)
        assert plan.chunks * plan.chunk * plan.splits == shapes[0][1]
        assert plan.tiles * TILE == sum(plan.outputs)
        assert plan.splits <= 8
        assert plan.shared_bytes <= _SHARED_BYTES
        taken += 1
    assert taken >= 3


@pytest.mark.parametrize(
    ("model", "B", "products"),
    [
        ("0.6B", 2, {"qkv", "o", "gated", "down"}),
        ("0.6B", 16, {"qkv", "o", "gated", "down"}),
        ("8B", 8, {"gated", "down"}),
        ("8B", 16, set()),
    ],
)
def test_products_that_xla_does_faster_are_left_to_it(model, B, products):
    taken = {
        name
        for name, (_, shapes) in _products(model).items()
        if skinny.supports(B, shapes, "bfloat16")
    }
    assert taken == products
