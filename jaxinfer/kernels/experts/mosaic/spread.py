"""Copies rows of tokens to their places among rows by expert: each is read once."""

from __future__ import annotations

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

# Of a row in registers at once, by all threads or by each warp, a power of two a thread.
_WIDTHS = (1024, 256, 128, 64, 32)


def spread(
    rows: Float[Array, "T E"], places: Int32[Array, "k N"], num_places: int
) -> Float[Array, "P E"]:
    """Row t at `places[:, t]`, but for `num_places`; what is nobody's place holds anything.

    Args:
        rows: of 16 bits; E a multiple of 32.
        places: all different; columns behind T are left out.
        num_places: P.

    Raises:
        ValueError: E is another number.
    """
    T, E = rows.shape
    if E % _WIDTHS[-1]:
        raise ValueError(f"columns must number a multiple of {_WIDTHS[-1]}, not {E}")
    width = next(n for n in _WIDTHS if E % n == 0)
    return plgpu.kernel(
        functools.partial(_block, num_places, width),
        out_type=jax.ShapeDtypeStruct((num_places, E), rows.dtype),
        grid=(T,),
        grid_names=("token",),
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="spread_rows",
    )(rows, places)


def _block(num_places, width, rows, places, out):
    token = lax.axis_index("token")
    is_wide = width == _WIDTHS[0]
    layout = plgpu.Layout.WG_STRIDED((width,), 8) if is_wide else row_layout(1, width).reduce(0)
    pieces = [pl.ds(first, width) for first in range(0, rows.shape[1], width)]
    # All loads before the first store, so that they are in flight together.
    found = [places[j, token] for j in range(places.shape[0])]
    loaded = [load_global(rows.at[token, piece], layout) for piece in pieces]
    for place in found:

        @pl.when(place < num_places)
        def _store(place=place):
            for values, piece in zip(loaded, pieces, strict=True):
                store_anyhow(out.at[place, piece], values)
