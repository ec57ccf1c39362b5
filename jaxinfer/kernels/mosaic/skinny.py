"""Projections of a few rows at the memory's speed, with what surrounds them fused in.

At batch 1 to 16 a decode step is mostly products of a few activations with large matrices. Such a
product is a read of the matrix; everything else should hide behind it. Three kernels cover a layer:

* `norm_project`: RMSNorm, then any number of projections of its output (q, k and v at once);
* `norm_gated`: RMSNorm, then `silu(x gate^T) * (x up^T)`;
* `project_add`: a projection added to the residual stream.

One block takes 64 output features and a slice of the contraction. It asks for its whole part of the
matrix at once (TMA, up to 128 KB in flight), and prepares the activations while that travels. As
in the decode kernel the large operand has wgmma's 64 rows and the batch is the 8 or 16 columns.
Blocks that share features form a cluster: they send partial sums to the first one's shared memory,
so that no second pass is needed (split-K, within a thread-block cluster).

The norm commutes with the product: `(x / rms(x)) w^T = (x w^T) / rms(x)`. So blocks multiply by the
norm's weight only, sum squares of their own slice, and the first block divides at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.mosaic.pages import SWIZZLED, on_warps
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_ROWS = (1, 2, 4, 8, 16)
_TILE = 64  # output features of a block: wgmma's M
_CHUNK = 64  # of the contraction: 128 bytes, the swizzle's width
_BLOCK_BYTES = 64 * 1024  # aimed at: three blocks fit on a multiprocessor
_MAX_CLUSTER = 8
_MAX_SLICE = 1024  # of the contraction; 128 KB of one weight
_COLUMN = plgpu.Layout.WGMMA.reduce(0)


def norm_project(
    x: Float[Array, "B I"],
    norm: Float[Array, " I"],
    weights: Sequence[Float[Array, "_ I"]],
    *,
    eps: float,
) -> tuple[Float[Array, "B _"], ...]:
    """`rms_norm(x) @ weight.T` for every weight, in one launch.

    Args:
        x: activations in bfloat16: 1, 2, 4, 8 or 16 rows. (Not float16: the activations times the
            norm's weight, before the division, could leave its range.)
        norm: weight of the RMSNorm.
        weights: `[O, I]` each, O a multiple of 64 and I of 64, in x's dtype.
        eps: of the norm.
    """
    return _run("plain", x, tuple(weights), norm=norm, eps=eps)


def norm_gated(
    x: Float[Array, "B I"],
    norm: Float[Array, " I"],
    gate: Float[Array, "F I"],
    up: Float[Array, "F I"],
    *,
    eps: float,
) -> Float[Array, "B F"]:
    """`silu(h @ gate.T) * (h @ up.T)` with `h = rms_norm(x)`; see `norm_project` for the limits."""
    return _run("gated", x, (gate, up), norm=norm, eps=eps)[0]


def project_add(
    x: Float[Array, "B I"], weight: Float[Array, "O I"], residual: Float[Array, "B O"]
) -> Float[Array, "B O"]:
    """`residual + x @ weight.T`; see `norm_project` for the limits."""
    return _run("residual", x, (weight,), residual=residual)[0]


def supports(B: int, shapes: Sequence[tuple[int, ...]], dtype: jax.typing.DTypeLike) -> bool:
    """Whether these kernels take `B` rows and weights of these shapes `(O, I)` and dtype.

    The contraction is limited because a block holds its whole part of it: 8192 for `norm_project`
    and `project_add`, 4096 for `norm_gated`, whose two weights count together.
    """
    size = shapes[0][1]
    whole = all(out % _TILE == 0 and same == size for out, same in shapes) and size % _CHUNK == 0
    if not (whole and B in _ROWS and jnp.dtype(dtype) == jnp.bfloat16):
        return False
    return _splits(size, 1, 1) * _MAX_SLICE >= size


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    kind: Literal["plain", "gated", "residual"]
    B: int
    size: int  # I, the contraction
    outputs: tuple[int, ...]  # features of each output
    matrices: int  # read by one block: 2 for gate and up
    splits: int
    eps: float
    dtype: jnp.dtype

    @property
    def columns(self) -> int:
        return -(-self.B // 8) * 8

    @property
    def slice(self) -> int:
        """Elements of the contraction that one block sums over."""
        return self.size // self.splits

    @property
    def chunks(self) -> int:
        return self.slice // _CHUNK


def _splits(size: int, matrices: int, tiles: int) -> int:
    """Blocks that share 64 features: enough to keep each near `_BLOCK_BYTES`, and the chip full."""
    chunks = size // _CHUNK
    possible = [n for n in range(1, _MAX_CLUSTER + 1) if chunks % n == 0]

    def enough(n: int) -> bool:
        fits = matrices * _TILE * size // n * 2 <= _BLOCK_BYTES
        return fits and tiles * n >= 120

    return next((n for n in possible if enough(n)), possible[-1])


def _run(kind, x, weights, *, norm=None, residual=None, eps=0.0):
    B, size = x.shape
    shapes = [w.shape for w in weights]
    if not supports(B, shapes, x.dtype):
        raise ValueError(
            "rows must number 1, 2, 4, 8 or 16, sizes be multiples of 64 and the dtype bfloat16;"
            f" got x {x.dtype}{x.shape} and weights {shapes}"
        )
    outputs = tuple(w.shape[0] for w in weights[: 1 if kind == "gated" else None])
    matrices = 2 if kind == "gated" else 1
    splits = _splits(size, matrices, sum(outputs) // _TILE)
    if matrices * size > splits * _MAX_SLICE:
        raise ValueError(f"a contraction over {size} is too long for {kind!r}")
    p = _Problem(kind, B, size, outputs, matrices, splits, eps, jnp.dtype(x.dtype))
    extra = [a for a in (norm, residual) if a is not None]
    N = p.columns
    kernel = plgpu.kernel(
        functools.partial(_block, p, len(weights)),
        out_type=tuple(jax.ShapeDtypeStruct((B, n), x.dtype) for n in outputs),
        grid=(sum(outputs) // _TILE,),
        grid_names=("tile",),
        cluster=(splits,) if splits > 1 else (),
        cluster_names=("split",) if splits > 1 else (),
        num_threads=1,
        thread_name="warpgroup",
        scratch_types={
            "w_smem": plgpu.SMEM((matrices, p.chunks, _TILE, _CHUNK), p.dtype, transforms=SWIZZLED),
            "x_smem": plgpu.SMEM((p.chunks, N, _CHUNK), p.dtype, transforms=SWIZZLED),
            "squares": plgpu.SMEM((N,), jnp.float32),
            "partial": plgpu.SMEM((matrices, splits, _TILE, N), jnp.float32),
            "o_smem": plgpu.SMEM((N, _TILE), p.dtype),
            "filled": plgpu.Barrier(num_arrivals=matrices, num_barriers=p.chunks),
            "gathered": plgpu.Barrier(num_arrivals=matrices * splits),
        },
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name=f"skinny_{kind}",
    )
    return kernel(x, *weights, *extra)


def _block(p, num_weights, x, *refs, w_smem, x_smem, squares, partial, o_smem, filled, gathered):
    weights, rest = refs[:num_weights], refs[num_weights:]
    extra, outputs = rest[: len(rest) - len(p.outputs)], rest[len(rest) - len(p.outputs) :]
    tile, split = lax.axis_index("tile"), lax.axis_index("split") if p.splits > 1 else 0
    start = split * p.slice
    on_warps(lambda: _request_weights(p, weights, tile, start, w_smem, filled))

    activations = _rows(p, x, start, p.slice)
    if p.kind != "residual":
        weight = load_global(extra[0].at[pl.ds(start, p.slice)], _layout(p).reduce(0))
        weight = lax.broadcast_in_dim(weight.astype(jnp.float32), activations.shape, [1])
        activations = activations * weight
    for chunk in range(p.chunks):
        piece = activations[:, chunk * _CHUNK : (chunk + 1) * _CHUNK]
        store_anyhow(x_smem.at[chunk], piece.astype(p.dtype))
    plgpu.commit_smem()
    sums = _multiply(p, w_smem, x_smem, filled)
    if p.splits == 1:
        _finish(p, x, extra, sums, tile, squares, o_smem, outputs)
        return
    for matrix, values in enumerate(sums):
        plgpu.async_store_smem(
            values,
            partial.at[matrix, split],
            gathered,
            cluster_idx=jnp.int32(0),
            cluster_dim="split",
            optimized=False,
        )

    @pl.when(split == 0)
    def _gather():
        plgpu.barrier_wait(gathered)
        whole = [_sum_of_parts(p, partial.at[matrix]) for matrix in range(p.matrices)]
        _finish(p, x, extra, whole, tile, squares, o_smem, outputs)


def _sum_of_parts(p, partial):
    parts = (
        plgpu.load(partial.at[i], layout=plgpu.Layout.WGMMA, optimized=False)
        for i in range(p.splits)
    )
    return functools.reduce(jnp.add, parts)


def _layout(p):
    """Of activations: rows over warps and half-warps, four elements a thread."""
    return row_layout(8, _CHUNK)


def _rows(p, x, start, width):
    """`x[:, start : start + width]` in fp32, with zeros for rows past the batch."""
    layout = _layout(p)
    if p.columns == p.B:
        return load_global(x.at[:, pl.ds(start, width)], layout).astype(jnp.float32)
    shape = (p.columns, width)
    index = plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=layout)
    rows = plgpu.layout_cast(jnp.zeros(shape, jnp.float32), layout)
    for b in range(p.B):
        row = load_global(x.at[b, pl.ds(start, width)], layout.reduce(0)).astype(jnp.float32)
        rows = jnp.where(index == b, lax.broadcast_in_dim(row, shape, [1]), rows)
    return rows


def _by_output(p, tile, do):
    """Calls `do(output, first feature)` for the output that a tile belongs to."""
    first = 0
    for index, features in enumerate(p.outputs):
        count = features // _TILE
        mine = (tile >= first) & (tile < first + count)
        pl.when(mine)(functools.partial(do, index, (tile - first) * _TILE))
        first += count


def _request_weights(p, weights, tile, start, w_smem, filled):
    def copy(output, feature):
        for chunk in range(p.chunks):
            for matrix in range(p.matrices):
                source = weights[output + matrix]
                columns = pl.ds(start + chunk * _CHUNK, _CHUNK)
                plgpu.copy_gmem_to_smem(
                    source.at[pl.ds(feature, _TILE), columns],
                    w_smem.at[matrix, chunk],
                    filled.at[chunk],
                )

    _by_output(p, tile, copy)


def _multiply(p, w_smem, x_smem, filled):
    def products(*accumulators):
        for chunk in range(p.chunks):
            plgpu.barrier_wait(filled.at[chunk])
            for matrix, accumulator in enumerate(accumulators):
                operand = x_smem.at[chunk].transpose((1, 0))
                plgpu.wgmma(accumulator, w_smem.at[matrix, chunk], operand)
        return [accumulator[...] for accumulator in accumulators]

    accumulator = plgpu.ACC((_TILE, p.columns), jnp.float32)
    return pl.run_scoped(products, *[accumulator] * p.matrices)


def _inverse_rms(p, x, squares):
    """`[64, N]`: 1 / rms of every row, spread as the columns of an accumulator."""

    def add(index, total):
        rows = _rows(p, x, index * p.slice, p.slice)
        return total + (rows * rows).sum(axis=1)

    zero = plgpu.layout_cast(jnp.zeros((p.columns,), jnp.float32), _layout(p).reduce(1))
    total = lax.fori_loop(0, p.splits, add, zero)
    store_anyhow(squares, lax.rsqrt(total / p.size + p.eps))
    column = plgpu.load(squares, layout=_COLUMN, optimized=False)
    return lax.broadcast_in_dim(column, (_TILE, p.columns), [1])


def _finish(p, x, extra, sums, tile, squares, o_smem, outputs):
    if p.kind != "residual":
        scale = _inverse_rms(p, x, squares)
        sums = [values * scale for values in sums]
    out = sums[0]
    if p.kind == "gated":
        out = out / (1.0 + jnp.exp(-out)) * sums[1]
    store_anyhow(o_smem.transpose((1, 0)), out.astype(p.dtype))
    if p.kind == "residual":
        layout = _layout(p)
        product = plgpu.load(o_smem, layout=layout, optimized=False).astype(jnp.float32)
        total = product + _rows(p, extra[0], tile * _TILE, _TILE)
        store_anyhow(o_smem, total.astype(p.dtype))
    plgpu.commit_smem()

    def write(output, feature):
        target = outputs[output].at[:, pl.ds(feature, _TILE)]
        plgpu.copy_smem_to_gmem(o_smem.at[pl.ds(0, p.B)], target)

    _by_output(p, tile, write)
    plgpu.wait_smem_to_gmem(0)
