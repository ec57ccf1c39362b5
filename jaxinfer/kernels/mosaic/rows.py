"""Moves whole rows between device memory and registers, for row-wise kernels."""

from __future__ import annotations

import jax
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic.pages import Ref, RegisterLayout


def row_layout(rows: int, columns: int) -> RegisterLayout:
    """Layout of a `[rows, columns]` array over 128 threads with vectors along a row.

    A row is spread over the lanes of one warp, so that a sum along it needs shuffles only. With
    fewer than four rows, warps repeat each other's work.

    Args:
        rows: 1, 2, 4, 8 or 16.
        columns: a multiple of 32.
    """
    warps = min(4, rows)
    per_warp = rows // warps
    vector = columns * per_warp // 32
    if per_warp > 1:
        return plgpu.Layout.TILED(
            plgpu.Tiling(((rows, columns), (per_warp, columns), (vector,))),
            warp_dims=(-5,),
            lane_dims=(-3, -2),
            vector_dim=-1,
        )
    repeated = {4: (-3,), 2: (plgpu.Replicated(2), -3), 1: (plgpu.Replicated(4),)}
    return plgpu.Layout.TILED(
        plgpu.Tiling(((rows, columns), (vector,))),
        warp_dims=repeated[warps],
        lane_dims=(-2,),
        vector_dim=-1,
    )


def rows_at_once(count: int) -> int:
    """The largest number of rows a layout above can hold that divides `count`."""
    return next(rows for rows in (16, 8, 4, 2, 1) if count % rows == 0)


def load_global(ref: Ref, layout: RegisterLayout) -> jax.Array:
    """Loads device memory into registers, also where that takes less than whole cache lines."""
    return plgpu.load(ref, layout=layout, optimized=False)


def store_anyhow(ref: Ref, values: jax.Array) -> None:
    """Stores registers, also with bank conflicts or to less than whole cache lines."""
    if hasattr(plgpu, "store"):  # From jax 0.12 on, `ref[...] =` refuses them.
        plgpu.store(ref, values, optimized=False)
    else:
        ref[...] = values
