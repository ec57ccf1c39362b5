"""Fused small projections: the same for any sizes of blocks, refused when odd."""

import functools

import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic import small
from jaxinfer.kernels.matmul.mosaic import small_plan as small_plan
from jaxinfer.kernels.matmul.mosaic.small_plan import SmallConfig
from tests.kernels.matmul.small_products import check, check_added


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(
    "config",
    [SmallConfig(n, stages, chunk) for n, stages, chunk in [(1, 2, 64), (4, 2, 128), (8, 8, 64)]],
    ids=str,
)
def test_any_configuration_gives_the_same_products(B, config):
    check(B, 1024, (192, 64, 64), config)
    check_added(B, 1024, 128, config)


@pytest.mark.parametrize(
    ("B", "stages", "size"),
    [
        pytest.param(2, 4, 256, marks=pytest.mark.exhaustive),
        (8, 2, 256),
        (2, 4, 320),
        (1, 2, 448),
    ],
)
def test_products_match_fp64_in_the_interpreter(B, stages, size, monkeypatch):
    """Slices longer than the ring of stages, and than what registers hold at once, or odd.

    Of 320 and 448 elements rows by themselves have 5 and 7 chunks, and registers 4 at once.
    """
    kernel = functools.partial(plgpu.kernel, interpret=plgpu.InterpretGPUParams())
    monkeypatch.setattr(plgpu, "kernel", kernel)
    monkeypatch.setattr(small_plan, "_PIECE", 64 * 8 * stages // 2)
    # One block a tile: the interpreter has no stores into another block's shared memory.
    check(B, size, (128, 64), SmallConfig(1, stages, 64))
    check_added(B, size, 64, SmallConfig(1, stages, 64))


@pytest.mark.parametrize(
    ("B", "shape", "dtype"),
    [(3, (64, 64), "bfloat16"), (2, (65, 64), "bfloat16"), (2, (64, 64), "float16")],
)
def test_what_the_kernels_cannot_load_is_refused(B, shape, dtype):
    assert not small.supports(B, [shape], dtype)
    x, weight = jnp.zeros((B, shape[1]), dtype), jnp.zeros(shape, dtype)
    with pytest.raises(ValueError, match="rows must number"):
        small.project_add(x, weight, jnp.zeros((B, shape[0]), dtype))
    with pytest.raises(ValueError, match="rows must number"):
        small.project(x, weight)
