"""Products with several weights in one launch: exact on a GPU, lowered for one elsewhere.

Pallas's interpreter knows neither multicast copies nor accumulators that outlive a loop's step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.kernels.matmul.mosaic import medium
from jaxinfer.kernels.matmul.mosaic.medium_plan import MediumConfig
from jaxinfer.kernels.mosaic import registers
from tests.kernels.h200_target import compile_for_h200, needs_plugin

_QKV, _MLP = (2048, 1024, 1024), (3072, 3072)
# What the sizes allow, also where the rule takes others: rows, outputs, matrices, configuration.
_SIZES = {
    "128_rows_a_consumer": (256, (768,), 2, MediumConfig(96, 256, 4, group=128)),
    "its_rows_shared": (248, (768,), 2, MediumConfig(96, 256, 4, share_rows=4, group=128)),
    "three_consumers": (192, (384,), 2, MediumConfig(96, 192, 4, share_rows=2)),
    "rows_and_weights_shared": (256, (512, 128), 1, MediumConfig(64, 128, 7, share_rows=2)),
    "tiles_beyond_the_ends": (256, (512, 128, 128), 1, MediumConfig(112, 128, 7, share_rows=2)),
    "two_chunks_a_stage": (64, (512, 128, 128), 1, MediumConfig(32, 64, 9, depth=2)),
    "of_shared_rows_and_weights": (256, (512, 128), 1, MediumConfig(64, 128, 4, 2, depth=2)),
    "a_whole_block_beyond_the_end": (64, (320,), 2, MediumConfig(96, 64, 7, share_rows=8)),
}


def _draw(seed, *shape):
    rng = np.random.default_rng(seed)
    return jnp.asarray((rng.standard_normal(shape) / shape[-1] ** 0.5).astype(jnp.bfloat16))


def _close(got, expected):
    error = np.linalg.norm(np.asarray(got, np.float64) - expected) / np.linalg.norm(expected)
    assert error < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("B", [32, 40, 64, 96, 128, 136, 192, 256])
def test_products_match_fp64(B):
    x = _draw(0, B, 1024) * 32
    weights = [_draw(n, n, 1024) for n in _QKV]
    gate, up = _draw(1, 3072, 1024), _draw(2, 3072, 1024)
    wide_x, a, b, *exact = (np.asarray(a, np.float64) for a in (x, gate, up, *weights))
    for got, weight in zip(jax.jit(medium.project)(x, weights), exact, strict=True):
        _close(got, wide_x @ weight.T)
    a, b = wide_x @ a.T, wide_x @ b.T
    _close(jax.jit(medium.gated)(x, gate, up), a / (1 + np.exp(-a)) * b)


def _call(x, weights, matrices, config=None):
    if matrices == 1:
        return medium.project(x, weights, config=config)
    return (medium.gated(x, *weights, config=config),)


@pytest.mark.gpu
@pytest.mark.parametrize("name", _SIZES)
def test_sizes_change_no_result(name):
    B, outputs, matrices, config = _SIZES[name]
    x = _draw(0, B, 1024) * 32
    weights = [_draw(n, n, 1024) for n in outputs for _ in range(matrices)]
    weights[-1] = _draw(1, outputs[-1], 1024)
    run = jax.jit(lambda x, *weights: _call(x, weights, matrices, config))
    exact = [np.asarray(x, np.float64) @ np.asarray(w, np.float64).T for w in weights]
    if matrices == 2:
        exact = [exact[0] / (1 + np.exp(-exact[0])) * exact[1]]
    for got, expected in zip(run(x, *weights), exact, strict=True):
        _close(got, expected)


def _adapted(B, R, num_slots=8):
    """Operands of products with ranks: rows, weights of q, k, v, gate and up, slots and owners."""
    slots = np.random.default_rng(B).integers(-1, num_slots, B)
    owners = np.repeat(np.arange(num_slots), R // num_slots)
    outputs = (*_QKV, *_MLP)
    weights = [_draw(n, n, 1024) for n in outputs[:-1]] + [_draw(7, outputs[-1], 1024)]
    groups = [(3, weights[:3]), (2, weights[3:])]
    return (
        _draw(0, B, 1024) * 32,
        jnp.asarray(slots, jnp.int32),
        jnp.asarray(owners, jnp.int32),
        [
            (
                own,
                _draw(9 + n, n * R, 1024),
                [_draw(3 + i, len(w), R) for i, w in enumerate(own)],
            )
            for n, own in groups
        ],
    )


def _with_ranks(x, slots, owners, groups):
    outputs = []
    for (weights, a, b), run in zip(groups, (medium.project, medium.gated), strict=True):
        owned = jnp.tile(owners, len(weights))
        low_rank = medium.LowRank(a, tuple(b), slots, owned, jnp.zeros((4, 2), jnp.int32))
        found = run(x, weights, low_rank) if run is medium.project else run(x, *weights, low_rank)
        outputs.append(found if isinstance(found, tuple) else (found,))
    return outputs


@pytest.mark.gpu
@pytest.mark.parametrize("R", [64, 128, 256])
@pytest.mark.parametrize("B", [8, 16, 40, 64, 128, 192, 256])
def test_ranks_are_added_and_only_a_rows_own(B, R):
    x, slots, owners, groups = _adapted(B, R)
    found = jax.jit(_with_ranks)(x, slots, owners, groups)
    wide = np.asarray(x, np.float64)
    own = np.asarray(slots)[:B, None] == np.tile(owners, 3)
    for (weights, a, b), got in zip(groups, found, strict=True):
        ranks = np.where(own[:, : len(a)], wide @ np.asarray(a, np.float64).T, 0.0)
        ranks = np.asarray(jnp.asarray(ranks, jnp.bfloat16), np.float64)
        parts = [ranks[:, i * R :][:, :R] for i in range(len(b))]
        exact = [
            wide @ np.asarray(weight, np.float64).T + part @ np.asarray(each, np.float64).T
            for weight, each, part in zip(weights, b, parts, strict=True)
        ]
        if len(exact) == 2:
            exact = [exact[0] / (1 + np.exp(-exact[0])) * exact[1]]
        for each, expected in zip(got, exact, strict=True):
            _close(each, expected)


@needs_plugin
@pytest.mark.parametrize("B", [8, 72, 256])
def test_ranks_take_one_launch_and_no_other(B):
    operands = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), _adapted(B, 64)
    )
    text = compile_for_h200(_with_ranks, *operands).as_text()
    assert text.count('custom_call_target="mosaic_gpu') == 2


def _shape(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@needs_plugin
@pytest.mark.parametrize("B", [32, 72, 256])
def test_each_is_one_kernel(B):
    def products(x, q, k, v, gate, up):
        return medium.project(x, (q, k, v)), medium.gated(x, gate, up)

    weights = [_shape(n, 1024) for n in (*_QKV, *_MLP)]
    compiled = compile_for_h200(products, _shape(B, 1024), *weights)
    assert compiled.as_text().count('custom_call_target="mosaic_gpu') == 2
    assert "fusion(" not in compiled.as_text()


def _kernels(B, shapes, matrices, config=None):
    def products(x, *weights):
        return _call(x, weights, matrices, config)

    compiled = compile_for_h200(
        products, _shape(B, shapes[0][1]), *[_shape(*shape) for shape in shapes]
    )
    return compiled.as_text().count('custom_call_target="mosaic_gpu')


@needs_plugin
@pytest.mark.parametrize("name", _SIZES)
def test_sizes_compile(name):
    B, outputs, matrices, config = _SIZES[name]
    shapes = [(n, 1024) for n in outputs for _ in range(matrices)]
    assert _kernels(B, shapes, matrices, config) == 1


# The widest products of one wave, and of two blocks a multiprocessor: 8B's and 14B's.
_PUBLISHED = {
    "qkv": ([(4096, 4096), (1024, 4096), (1024, 4096)], 1, (32, 72, 192, 256)),
    # XLA's at 256 rows, where registers can't be moved.
    "gate_and_up": ([(12288, 4096)] * 2, 2, (32, 96, 192, *[256] * registers.can_be_moved())),
    "down": ([(4096, 12288)], 1, (64, 128)),
    "gate_and_up_of_14b": ([(17408, 5120)] * 2, 2, (64,)),
    "qkv_of_32b": ([(8192, 5120), (1024, 5120), (1024, 5120)], 1, (128, 192, 256)),
}


@needs_plugin
@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_shapes_compile(name):
    shapes, matrices, sizes = _PUBLISHED[name]
    for B in sizes:
        assert _kernels(B, shapes, matrices) == 1


@pytest.mark.parametrize(
    ("B", "output", "config"),
    [
        (64, 256, MediumConfig(20, 64, 4)),
        (64, 256, MediumConfig(264, 64, 4)),
        (64, 256, MediumConfig(64, 96, 4)),
        (64, 256, MediumConfig(64, 128, 4, group=96)),
        (64, 256, MediumConfig(64, 64, 1)),
        (64, 264, MediumConfig(64, 64, 4)),
        (64, 256, MediumConfig(64, 64, 4, depth=4)),
        (60, 256, MediumConfig(64, 64, 4)),
        (192, 256, MediumConfig(64, 64, 4)),
        (128, 256, MediumConfig(40, 64, 4)),
        (64, 256, MediumConfig(64, 64, 4, share_rows=3)),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(B, output, config):
    with pytest.raises(ValueError, match="does not fit"):
        _call(_draw(0, B, 128), [_draw(1, output, 128)], 1, config)


@pytest.mark.parametrize(
    ("B", "outputs", "dtype"),
    [
        (24, _QKV, "bfloat16"),
        (33, _QKV, "bfloat16"),
        (264, _QKV, "bfloat16"),
        (64, (2048, 1000), "bfloat16"),
        (64, _QKV, "float16"),
    ],
)
def test_what_the_rule_leaves_to_xla_is_refused(B, outputs, dtype):
    assert medium.choose(64, [(n, 1024) for n in _QKV], "bfloat16")
    assert medium.choose(B, [(n, 1024) for n in outputs], dtype) is None
    weights = [jnp.zeros((n, 1024), dtype) for n in outputs]
    with pytest.raises(ValueError, match="no configuration"):
        medium.project(jnp.zeros((B, 1024), dtype), weights)
