"""Ragged paged prefill attention through jax-triton: the Mosaic kernel's twin for older GPUs."""

import jax
import jax_triton  # pyright: ignore[reportMissingImports]
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.mosaic.work_list import work_list
from jaxinfer.kernels.attention.pages import PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.triton.kernels import prefill_kernel
from jaxinfer.kernels.constants import LOG2_E

_BLOCK_M = 128
_BLOCK_N = 64


def paged_prefill_attention(
    q: Float[Array, "T H D"], pages: Pages, rows: PagedRows, scoring: Scoring
) -> Float[Array, "T H D"]:
    """Causal attention of packed queries; see `Attend`."""
    T, H, D = q.shape
    S, K = pages.k.shape[1:3]
    context_lens, block_tables, cu_seqlens_q = rows
    assert cu_seqlens_q is not None
    lines, count = work_list(T, cu_seqlens_q, context_lens, _BLOCK_M, scoring.window)
    return jax_triton.triton_call(
        q,
        pages.k,
        pages.v,
        block_tables,
        lines,
        count,
        kernel=prefill_kernel,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        grid=(H * lines.shape[0],),  # CUDA's other axes end at 65,535
        num_warps=8,
        num_stages=2,
        H=H,
        K=K,
        D=D,
        S=S,
        W=block_tables.shape[1],
        BLOCK_M=_BLOCK_M,
        BLOCK_N=_BLOCK_N,
        WINDOW=scoring.window or 0,
        qk_scale=scoring.scale * LOG2_E,
    )
