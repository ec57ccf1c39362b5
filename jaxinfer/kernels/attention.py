"""The paged-attention op: one signature, and the one place that chooses an implementation."""

import importlib.util
from typing import Literal

from jax import Array
from jaxtyping import Float, Int32

from jaxinfer.kernels import page_write, reference

Backend = Literal["mosaic", "triton", "xla"]

_KERNEL_HEAD_DIMS = (64, 128)
_KERNEL_DTYPES = ("bfloat16", "float16")
_KERNEL_MAX_GROUP_SIZE = 16


def paged_attention(
    q: Float[Array, "T H D"],
    k_pages: Float[Array, "P S K D"],
    v_pages: Float[Array, "P S K D"],
    cu_seqlens_q: Int32[Array, " B1"],
    context_lens: Int32[Array, " B"],
    block_tables: Int32[Array, "B W"],
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    max_query_len: int | None = None,
    backend: Backend = "xla",
) -> Float[Array, "T H D"]:
    """Attention of packed ragged queries over keys and values held in pages.

    Query ``i`` of row ``b`` sits at absolute position ``context_lens[b] - query_len[b] + i``
    where ``query_len[b] = cu_seqlens_q[b + 1] - cu_seqlens_q[b]``. The key at position ``p`` of row
    ``b`` is ``k_pages[block_tables[b, p // S], p % S]``; keys of this step are already written.

    Args:
        q: normalised and rotated queries, rows packed one after the other.
        k_pages: key pages; slots that no row reaches may hold anything, NaN included.
        v_pages: value pages, likewise.
        cu_seqlens_q: ``[B + 1]`` offsets of the rows in ``q``, starting at 0, never decreasing.
        context_lens: keys of each row, this step's included; 0 marks a padding row.
        block_tables: page ids of each row in order; entries past the context are not used. Ids
            must lie in ``[0, P)``: the host's block pool guarantees it.
        scale: what scores are multiplied by, usually ``D ** -0.5``.
        causal: a query sees keys at its own position and before; False sees the whole context.
        window: a query sees only the last `window` positions up to its own; None sees all.
        max_query_len: static promise about the longest row; 1 means decoding: ``T == B`` and row
            ``b`` is query ``b`` (`cu_seqlens_q` is then ignored, rows of context 0 give zeros).
        backend: the implementation, from `choose_backend`.

    Returns:
        ``[T, H, D]`` in q's dtype; zeros for tokens that belong to no row.

    Raises:
        ValueError: a kernel backend was asked for something only "xla" does.
    """
    decoding = max_query_len == 1
    if backend == "xla":
        if decoding:
            return reference.paged_decode_attention(
                q, k_pages, v_pages, context_lens, block_tables, scale=scale, window=window
            )
        return reference.paged_prefill_attention(
            q,
            k_pages,
            v_pages,
            cu_seqlens_q,
            context_lens,
            block_tables,
            scale=scale,
            causal=causal,
            window=window,
        )
    if not causal and not decoding:
        raise ValueError(f"attention backend {backend!r} is causal only; use 'xla'")
    # The kernels import GPU-only packages, so they load when they are first chosen.
    if backend == "mosaic":
        from jaxinfer.kernels.mosaic.decode import paged_decode_attention
        from jaxinfer.kernels.mosaic.prefill import paged_prefill_attention
    else:
        from jaxinfer.kernels.triton.decode import paged_decode_attention
        from jaxinfer.kernels.triton.prefill import paged_prefill_attention
    if decoding:
        return paged_decode_attention(
            q, k_pages, v_pages, context_lens, block_tables, scale=scale, window=window
        )
    return paged_prefill_attention(
        q,
        k_pages,
        v_pages,
        cu_seqlens_q,
        context_lens,
        block_tables,
        scale=scale,
        window=window,
    )


def norm_rope_write(
    q: Float[Array, "T H D"],
    k: Float[Array, "T K D"],
    v: Float[Array, "T K D"],
    q_norm: Float[Array, " D"],
    k_norm: Float[Array, " D"],
    cos: Float[Array, "T D"],
    sin: Float[Array, "T D"],
    k_pages: Float[Array, "P S K D"],
    v_pages: Float[Array, "P S K D"],
    slot_mapping: Int32[Array, " T"],
    *,
    eps: float,
    backend: Backend = "xla",
) -> tuple[Float[Array, "T H D"], Float[Array, "P S K D"], Float[Array, "P S K D"]]:
    """Normalise and rotate this step's q and k, and write k and v into their pages.

    Args:
        q: raw query projections.
        k: raw key projections.
        v: value projections.
        q_norm: weight of the per-head RMSNorm of q.
        k_norm: weight of the per-head RMSNorm of k.
        cos: rotary cosines at each token's position, both halves filled, in the model's dtype.
        sin: rotary sines, likewise.
        k_pages: key pages, updated in place where the caller donates them.
        v_pages: value pages, likewise.
        slot_mapping: ``page * S + offset`` of each token; padding tokens carry slot 0, which
            belongs to page 0, which no sequence ever holds. Must lie in ``[0, P * S)``.
        eps: of both norms.
        backend: the implementation, from `choose_backend`.

    Returns:
        The rotated queries and both page arrays.
    """
    if backend == "mosaic":
        from jaxinfer.kernels.mosaic.norm_rope_write import norm_rope_write as implementation
    else:  # jax-triton has no twin of this kernel: XLA's fusions serve there.
        implementation = page_write.norm_rope_write
    return implementation(
        q, k, v, q_norm, k_norm, cos, sin, k_pages, v_pages, slot_mapping, eps=eps
    )


def choose_backend(
    requested: Literal["auto", "mosaic", "triton", "xla"],
    *,
    head_dim: int,
    dtype: str,
    block_size: int,
    group_size: int,
    platform: str,
    compute_capability: tuple[int, int] | None,
) -> tuple[Backend, str]:
    """Pick the attention implementation once, visibly.

    Args:
        requested: "auto" or the name of an implementation.
        head_dim: D.
        dtype: name of the dtype of activations and pages.
        block_size: S, tokens in a page.
        group_size: query heads that share a KV head.
        platform: of the devices: "cpu", "gpu".
        compute_capability: of an NVIDIA GPU, for example (9, 0); None elsewhere.

    Returns:
        The name, and the reason in a few words for the start-up report.

    Raises:
        ValueError: `requested` can't run here; says why and lists what can.
    """
    obstacles = {
        "mosaic": _kernel_obstacle(head_dim, dtype, group_size)
        or _mosaic_obstacle(platform, compute_capability),
        "triton": _kernel_obstacle(head_dim, dtype, group_size)
        or _triton_obstacle(platform, compute_capability),
    }
    supported: list[Backend] = [*(b for b in ("mosaic", "triton") if obstacles[b] is None), "xla"]
    if requested == "auto":
        best = supported[0]
        if best == "xla":
            return best, "cpu" if platform == "cpu" else f"triton {obstacles['triton']}"
        return best, f"fastest measured on compute capability {_dotted(compute_capability)}"
    if requested not in supported:
        raise ValueError(
            f"attention_backend={requested!r} {obstacles[requested]}; supported here (head_dim "
            f"{head_dim}, {dtype}, block_size {block_size}, {group_size} query heads per KV head, "
            f"{platform}): {', '.join(supported)}"
        )
    return requested, "requested"


def _kernel_obstacle(head_dim: int, dtype: str, group_size: int) -> str | None:
    """Why no GPU kernel can serve this model, or None."""
    if head_dim not in _KERNEL_HEAD_DIMS:
        return f"needs head_dim 64 or 128, not {head_dim}"
    if dtype not in _KERNEL_DTYPES:
        return f"needs bfloat16 or float16, not {dtype}"
    if group_size > _KERNEL_MAX_GROUP_SIZE:
        return f"needs at most {_KERNEL_MAX_GROUP_SIZE} query heads per KV head, not {group_size}"
    return None


def _mosaic_obstacle(platform: str, compute_capability: tuple[int, int] | None) -> str | None:
    # wgmma exists on compute capability 9.x alone: neither before Hopper nor after it.
    if platform != "gpu" or compute_capability is None or compute_capability[0] != 9:
        where = _where(platform, compute_capability)
        return f"needs a Hopper GPU (compute capability 9.x), not {where}"
    return None


def _triton_obstacle(platform: str, compute_capability: tuple[int, int] | None) -> str | None:
    if platform != "gpu" or compute_capability is None or compute_capability < (8, 0):
        return (
            "needs an NVIDIA GPU of compute capability 8.0 or higher, not "
            f"{_where(platform, compute_capability)}"
        )
    if importlib.util.find_spec("jax_triton") is None:
        return "needs the package jax-triton (pip install 'jaxinfer[triton]')"
    return None


def _where(platform: str, compute_capability: tuple[int, int] | None) -> str:
    return platform if compute_capability is None else f"{_dotted(compute_capability)}"


def _dotted(compute_capability: tuple[int, int] | None) -> str:
    return "unknown" if compute_capability is None else ".".join(map(str, compute_capability))
