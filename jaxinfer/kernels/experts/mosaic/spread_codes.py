"""Quantizes rows of tokens and writes their codes to their places among rows by expert."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantized
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

BEHIND = 64
"""Scales of no row behind the last one's: from any row on, as many can be loaded."""

_GROUPS = (8, 4, 2, 1)  # of a row in registers at once


class CodeRows(NamedTuple):
    """Rows as codes.

    Attributes:
        codes: float8_e4m3fn.
        scale: float32, of each group of 128 inputs, with room for `BEHIND` rows more.
    """

    codes: Float[Array, "P I"]
    scale: Float[Array, "G _"]


def spread(rows: Float[Array, "T E"], places: Int32[Array, "k N"], num_places: int) -> CodeRows:
    """Row t at `places[:, t]`, but for `num_places`; what is nobody's place holds anything.

    Args:
        rows: bfloat16; E a multiple of 128.
        places: all different; columns behind T are left out.
        num_places: P.
    """
    T, E = rows.shape
    groups = E // GROUP
    codes, scale = plgpu.kernel(
        _block,
        out_type=(
            jax.ShapeDtypeStruct((num_places, groups, GROUP), FP8),
            jax.ShapeDtypeStruct((groups, num_places + BEHIND), jnp.float32),
        ),
        grid=(T,),
        grid_names=("token",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="spread_codes",
    )(rows.reshape(T, groups, GROUP), places)
    return CodeRows(codes.reshape(num_places, E), scale)


def _block(rows, places, codes, scales):
    token = lax.axis_index("token")
    groups = rows.shape[1]
    at_once = next(n for n in _GROUPS if groups % n == 0)
    pieces = [pl.ds(first, at_once) for first in range(0, groups, at_once)]
    # All loads before the arithmetic, so that they are in flight together.
    found = [places[j, token] for j in range(places.shape[0])]
    loaded = [load_global(rows.at[token, piece], row_layout(at_once, GROUP)) for piece in pieces]
    made = [quantized(values.astype(jnp.float32)) for values in loaded]
    for place in found:

        @pl.when(place < codes.shape[0])
        def _store(place=place):
            for ((narrow,), scale), piece in zip(made, pieces, strict=True):
                store_anyhow(codes.at[place, piece], narrow)
                store_anyhow(scales.at[piece, place], scale)
