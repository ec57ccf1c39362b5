"""Values of a tile's 64 output features: scales and zero points, from device memory to registers.

Of gate and up a tile has 32 features each, so that two loads are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith

from jaxinfer.kernels.matmul.mosaic.medium_codes_plan import MediumCodesPlan
from jaxinfer.kernels.matmul.weight_form import TILE
from jaxinfer.kernels.mosaic.pages import Ref, Scalar
from jaxinfer.kernels.mosaic.rows import load_global

OPERAND = plgpu.Layout.WGMMA
ROW = OPERAND.reduce(1)
"""Layout of one value per row (output feature) of an operand or of sums."""

HALF = plgpu.Layout.TILED(
    plgpu.Tiling(((32, 8), (16, 8), (8, 8), (2,))),
    warp_dims=(plgpu.Replicated(2), -7),
    lane_dims=(-3, -2),
    vector_dim=-1,
)
"""Layout of 32 of an operand's rows, which two warps have and two more."""
_HALF_ROW = HALF.reduce(1)


def values_of_tile(
    p: MediumCodesPlan, arrays: Sequence[Ref], tile: Scalar, chunk: Scalar | None
) -> jax.Array:
    """Float32 values of a tile's features, layout `ROW`.

    Args:
        arrays: of every weight, ``[O]`` if `chunk` is None; or ``[O / a, I / 128]``.
    """

    def of_output(output: int, first: int) -> jax.Array:
        outputs = p.outputs[output]
        feature = jnp.clip((tile - first) * p.features, 0, outputs - p.features)

        def load(matrix: int, rows: int, layout: Any) -> jax.Array:
            array = arrays[output * p.matrices + matrix]
            sharing = outputs // array.shape[0]
            if sharing > 1:
                scalar = array[lax.div(feature, jnp.int32(sharing)), chunk]
                return plgpu.layout_cast(jnp.full((rows,), scalar), layout)
            where = (pl.ds(feature, rows),) if chunk is None else (pl.ds(feature, rows), chunk)
            return load_global(array.at[where], layout).astype(jnp.float32)

        return _of_rows(load, p.matrices)

    found, first = of_output(0, 0), p.outputs[0] // p.features
    for output in range(1, len(p.outputs)):
        is_its = jnp.broadcast_to(tile >= first, (TILE,))
        found = jnp.where(is_its, of_output(output, first), found)
        first += p.outputs[output] // p.features
    return found


def _of_rows(load: Callable[[int, int, Any], jax.Array], matrices: int) -> jax.Array:
    """Values of an operand's 64 rows, layout `ROW`.

    Args:
        load: `load(matrix, rows, layout)` returns values of as many rows of a matrix.
        matrices: one; or two, whose rows are one half each.
    """
    if matrices == 1:
        return load(0, TILE, ROW)
    halves = [load(matrix, TILE // 2, _HALF_ROW) for matrix in range(2)]
    result = plgpu.ShapeDtypeStruct((TILE,), halves[0].dtype, layout=ROW)

    @plgpu.inline_mgpu(arg_types=(_HALF_ROW, _HALF_ROW), return_type=result)
    def join(_: Any, first: Any, second: Any) -> Any:
        word = ir.IntegerType.get_signless(32)
        threads, half = (arith.constant(word, ir.IntegerAttr.get(word, n)) for n in (128, 64))
        thread = arith.remui(mgpu.utils.thread_idx(), threads)
        is_first = arith.cmpi(arith.CmpIPredicate.ult, thread, half)
        registers = np.empty((1, 1, 2, 1, 1), object)
        pairs = zip(first.registers.flat, second.registers.flat, strict=True)
        for index, (a, b) in enumerate(pairs):
            registers[0, 0, index, 0, 0] = arith.select(is_first, a, b)
        return mgpu.FragmentedArray(_registers=registers, _layout=ROW.to_mgpu(), _is_signed=None)

    return join(*halves)
