"""Paged decode attention through jax-triton: the Mosaic decode kernel's twin for older GPUs."""

import jax
import jax.numpy as jnp
import jax_triton  # pyright: ignore[reportMissingImports]
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.triton.kernels import decode_kernel
from jaxinfer.kernels.constants import LOG2_E, MULTIPROCESSORS

_BLOCK_N = 64


def paged_decode_attention(
    q: Float[Array, "B H D"],
    pages: Pages,
    rows: PagedRows,
    scoring: Scoring,
    *,
    num_splits: int | None = None,
) -> Float[Array, "B H D"]:
    """Decode attention, see `Attend`; `num_splits` programs share a row (None: fill the chip)."""
    B, H, D = q.shape
    S, K = pages.k.shape[1:3]
    W = rows.block_tables.shape[1]
    if num_splits is None:
        num_splits = max(1, min(round(2 * MULTIPROCESSORS / (B * K)), W * S // 256, 64))
    split = num_splits > 1
    out, log_sums = jax_triton.triton_call(
        q,
        pages.k,
        pages.v,
        rows.context_lens,
        rows.block_tables,
        kernel=decode_kernel,
        out_shape=[
            jax.ShapeDtypeStruct((num_splits, B, H, D), jnp.float32 if split else q.dtype),
            jax.ShapeDtypeStruct((num_splits, B, H), jnp.float32),
        ],
        grid=(B, K, num_splits),
        num_warps=4,
        num_stages=3,
        H=H,
        K=K,
        D=D,
        S=S,
        W=W,
        BLOCK_G=max(16, 1 << (H // K - 1).bit_length()),
        BLOCK_N=_BLOCK_N,
        SPLITS=num_splits,
        WINDOW=scoring.window or 0,
        qk_scale=scoring.scale * LOG2_E,
    )
    if not split:
        return out[0]
    # FlashDecoding: weigh the partial outputs by their sums. The bound keeps (-inf) - (-inf) away.
    weights = jnp.exp2(log_sums - jnp.maximum(log_sums.max(0), -1e30))
    total = jnp.maximum(weights.sum(0), 1e-30)
    return ((out * weights[..., None]).sum(0) / total[..., None]).astype(q.dtype)
