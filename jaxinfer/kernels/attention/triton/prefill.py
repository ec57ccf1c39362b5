"""Ragged paged prefill attention through jax-triton: the Mosaic kernel's twin for older GPUs."""

import jax
import jax_triton  # pyright: ignore[reportMissingImports]
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.mosaic.work_list import work_list
from jaxinfer.kernels.attention.triton.kernels import prefill_kernel
from jaxinfer.kernels.constants import LOG2_E

_BLOCK_M = 128
_BLOCK_N = 64


def paged_prefill_attention(
    q: Float[Array, "T H D"],
    k_pages: Float[Array, "P S K D"],
    v_pages: Float[Array, "P S K D"],
    cu_seqlens_q: Int32[Array, " B1"],
    context_lens: Int32[Array, " B"],
    block_tables: Int32[Array, "B W"],
    *,
    scale: float,
    window: int | None = None,
) -> Float[Array, "T H D"]:
    """Causal attention of packed queries over pages; zeros for tokens past the last sequence.

    Arguments as in `jaxinfer.kernels.attention.mosaic.prefill.paged_prefill_attention`.
    """
    T, H, D = q.shape
    S, K = k_pages.shape[1:3]
    lines, count = work_list(T, cu_seqlens_q, context_lens, _BLOCK_M, window)
    return jax_triton.triton_call(
        q,
        k_pages,
        v_pages,
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
        WINDOW=window or 0,
        qk_scale=scale * LOG2_E,
    )
