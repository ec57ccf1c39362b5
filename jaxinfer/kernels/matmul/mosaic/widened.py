"""Widens codes in shared memory to operands of tensor cores, in registers.

Tensor cores have no product of 8 or 4 bits with bfloat16, which holds every float8_e4m3fn and every
integer of 8 bits. Scales are for sums, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import arith

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import TILE
from jaxinfer.kernels.mosaic.pages import Ref, Scalar
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_OPERAND = plgpu.Layout.WGMMA
_FEATURES = _OPERAND.reduce(1)  # of a vector over a tile's features
_AT_ONCE = 8  # groups whose scales are on their way to a thread at once


def store_scales(
    weights: Sequence[QuantizedLinear], feature: Scalar, first: Scalar, scales: dict[str, Ref]
) -> None:
    """Brings the scales of tiles to shared memory; `commit_smem` must follow.

    Args:
        weights: codes in device memory, of which a tile each is multiplied.
        feature: the tiles' first.
        first: the first of the groups in the block's slice.
        scales: the part of a warpgroup in `memory_of_codes`.
    """
    count = scales["scale"].shape[1]
    piece = next(n for n in range(min(count, _AT_ONCE), 0, -1) if count % n == 0)

    def store(index: Scalar, _: None) -> None:
        groups = [index * piece + offset for offset in range(piece)]
        at = [(m, group) for m in range(len(weights)) for group in groups]
        # All are on their way before the first is stored.
        loaded = {"scale": [_scales(weights[m], feature, first + group) for m, group in at]}
        if "zero" in scales:
            loaded["zero"] = [_zeros(weights[m].zero, feature, first + group) for m, group in at]
        for name, columns in loaded.items():
            for (m, group), values in zip(at, columns, strict=True):
                store_anyhow(scales[name].at[m, group], values)

    jax.lax.fori_loop(0, count // piece, store, None)


def _scales(codes: QuantizedLinear, feature: Scalar, group: Scalar) -> jax.Array:
    """The scales of a tile's features ``[TILE]`` for a group."""
    if len(codes.scale.shape) == 1:
        return load_global(codes.scale.at[pl.ds(feature, TILE)], _FEATURES)
    sharing = codes.weight.shape[0] // codes.scale.shape[0]
    if sharing == 1:
        return load_global(codes.scale.at[pl.ds(feature, TILE), group], _FEATURES)
    one = plgpu.load(codes.scale.at[feature // sharing, group])
    return plgpu.layout_cast(jax.lax.broadcast_in_dim(one, (TILE,), []), _FEATURES)


def _zeros(zero: Ref, feature: Scalar, group: Scalar) -> jax.Array:
    loaded = load_global(zero.at[pl.ds(feature, TILE), group], _FEATURES)
    return loaded.astype(jnp.int32).astype(jnp.float32) - 8.0


def of_features(values: Ref, columns: int) -> jax.Array:
    """A value of each feature ``[TILE]`` in shared memory, for sums ``[TILE, columns]``."""
    loaded = plgpu.load(values, layout=_FEATURES, optimized=False)
    return jax.lax.broadcast_in_dim(loaded, (TILE, columns), [0])


def widened(tile: Ref) -> jax.Array:
    """Codes in shared memory as wgmma's first operand, in bfloat16.

    Args:
        tile: ``[64, n]`` float8_e4m3fn or int8; or uint8 of two integers each, which become
            ``[64, 2n]`` less 8.
    """
    if tile.dtype == jnp.uint8:
        loaded = plgpu.load(tile, layout=plgpu.Layout.WGMMA_8BIT, optimized=False)
        return _nibbles(*tile.shape)(loaded)
    loaded = plgpu.load(tile, layout=plgpu.Layout.WGMMA_UPCAST_2X)
    wide = plgpu.layout_cast(loaded, _OPERAND)
    if tile.dtype == FP8:  # PTX converts it to float16 alone.
        wide = wide.astype(jnp.float16).astype(jnp.float32)
    return wide.astype(jnp.bfloat16)


def _nibbles(rows: int, columns: int) -> Any:
    """Widens `[rows, columns]` bytes of two integers each."""
    result = plgpu.ShapeDtypeStruct((rows, 2 * columns), jnp.dtype(jnp.bfloat16), layout=_OPERAND)

    @plgpu.inline_mgpu(arg_types=(plgpu.Layout.WGMMA_8BIT,), return_type=result)
    def widen(_: Any, pairs: Any) -> Any:
        # A thread's four bytes are eight integers in turn; as signed ones they are 8 less.
        word, eight = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(4)
        sign = arith.constant(word, ir.IntegerAttr.get(word, -0x77777778))
        registers = np.empty_like(pairs.registers)
        for index, register in np.ndenumerate(pairs.registers):
            flipped = arith.xori(mgpu.utils.bitcast(register, word), sign)
            registers[index] = mgpu.utils.bitcast(flipped, ir.VectorType.get((8,), eight))
        integers = mgpu.FragmentedArray(
            _registers=registers, _layout=mgpu.WGMMA_LAYOUT_UPCAST_4X, _is_signed=True
        )
        bf16 = ir.BF16Type.get()
        return integers.to_layout(mgpu.WGMMA_LAYOUT).astype(bf16)

    return widen
