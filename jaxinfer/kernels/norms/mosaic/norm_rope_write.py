"""Per-head RMSNorm, rotary embedding and the write into the pages, as one kernel.

Between the projections and attention, a model may normalise every query and key head (RMSNorm over
D); it rotates them (RoPE, Su et al. 2021, arXiv:2104.09864, rotate-half form) and stores keys and
values in their pages. Done separately these are half a dozen kernels that each cost more to launch
than to run at small batch. Here one block of 128 threads does all of it for one token; a head's row
lies within a warp, so the norm's sum needs shuffles only.

Queries, keys and values may come in one array. A kernel's operands are whole arrays, so XLA would
otherwise cut what one product gave into three, with a kernel for each.

Arithmetic is in fp32 from the projections to the one rounding at the end.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.fp8 import FP8, saturated
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, rows_at_once, store_anyhow


def norm_rope_write(
    heads: tuple[Float[Array, "T _ D"], ...],
    q_norm: Float[Array, " D"] | None,
    k_norm: Float[Array, " D"] | None,
    cos: Float[Array, "T D"],
    sin: Float[Array, "T D"],
    pages: Pages,
    slot_mapping: Int32[Array, " T"],
    *,
    eps: float,
) -> tuple[Float[Array, "T H D"], Pages]:
    """Normalises and rotates q and k, and writes k and v into their pages in place.

    Arguments as in `jaxinfer.kernels.attention.op.norm_rope_write`. The pages are mutated through
    `jax.Ref`s: under a jit that donates them, or inside a loop that carries them, no copy of a
    pool is made; otherwise XLA copies them first and the caller's arrays stay as they were.
    """
    T, all_heads, D = heads[0].shape
    H = all_heads if len(heads) == 3 else all_heads - 2 * pages.k.shape[2]
    norms = () if q_norm is None or k_norm is None else (q_norm, k_norm)
    kernel = plgpu.kernel(
        functools.partial(_token, eps, len(heads), len(norms)),
        out_type=jax.ShapeDtypeStruct((T, H, D), heads[0].dtype),
        grid=(T,),
        grid_names=("token",),
        # Nothing is both read and written, and no thread reads what another wrote.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name="norm_rope_write",
    )
    k_ref, v_ref = jax.new_ref(pages.k), jax.new_ref(pages.v)
    rotated = kernel(*heads, *norms, cos, sin, slot_mapping, k_ref, v_ref)
    return rotated, Pages(jax.freeze(k_ref), jax.freeze(v_ref))


def _token(eps, num_arrays, num_norms, *refs):
    *norms, cos, sin, slots, k_pages, v_pages, rotated = refs[num_arrays:]
    q_norm, k_norm = norms if num_norms else (None, None)
    token = lax.axis_index("token")
    slot = slots[token]
    page_size = k_pages.shape[1]
    at = (slot // page_size, slot % page_size)
    # One layout for all heads, so that cosines and sines are loaded once.
    H, K = rotated.shape[1], k_pages.shape[2]
    rows = rows_at_once(math.gcd(H, K))
    arrays = refs[:num_arrays] * (3 // num_arrays)
    starts = (0, 0, 0) if num_arrays == 3 else (0, H, H + K)
    # All loads before the first store, so that they are in flight together.
    queries, keys, values = (
        _load_heads(x.at[token, pl.ds(start, count)], rows)
        for x, start, count in zip(arrays, starts, (H, K, K), strict=True)
    )
    rotation = (cos.at[token], sin.at[token])
    queries = _norm_rope(eps, queries, q_norm, rotation)
    keys = _norm_rope(eps, keys, k_norm, rotation)
    _store_heads(queries, rotated.at[token])
    _store_heads(keys, k_pages.at[at])
    _store_heads(values, v_pages.at[at])


def _load_heads(x, rows):
    """`x[heads, D]` as groups of `rows` heads, each a pair of `[rows, D / 2]` halves."""
    heads, D = x.shape
    half = D // 2
    layout = row_layout(rows, half)
    return [
        tuple(load_global(x.at[part], layout) for part in halves)
        for halves in _halves(heads, rows, half)
    ]


def _store_heads(groups, out):
    rows, half = groups[0][0].shape
    for group, halves in zip(groups, _halves(out.shape[0], rows, half), strict=True):
        for values, part in zip(group, halves, strict=True):
            if out.dtype == FP8:
                values = saturated(values.astype(jnp.float32))
            store_anyhow(out.at[part], values.astype(out.dtype))


def _halves(heads, rows, half):
    return [
        tuple((pl.ds(first, rows), pl.ds(i * half, half)) for i in (0, 1))
        for first in range(0, heads, rows)
    ]


def _norm_rope(eps, groups, weight, rotation):
    """RMSNorm over both halves of every row, if there is a weight, then the rotation, in fp32."""
    rows, half = groups[0][0].shape
    layout = row_layout(rows, half)

    def halves(vector):
        parts = [load_global(vector.at[pl.ds(i * half, half)], layout.reduce(0)) for i in (0, 1)]
        return [lax.broadcast_in_dim(p.astype(jnp.float32), (rows, half), [1]) for p in parts]

    vectors = rotation if weight is None else (*rotation, weight)
    (cos1, cos2), (sin1, sin2), *weights = map(halves, vectors)
    rotated = []
    for group in groups:
        x1, x2 = (x.astype(jnp.float32) for x in group)
        for weight1, weight2 in weights:
            mean_square = (x1 * x1 + x2 * x2).sum(axis=1) / (2 * half)
            scale = lax.broadcast_in_dim(lax.rsqrt(mean_square + eps), (rows, half), [0])
            x1, x2 = x1 * scale * weight1, x2 * scale * weight2
        rotated.append((x1 * cos1 - x2 * sin1, x2 * cos2 + x1 * sin2))
    return rotated
