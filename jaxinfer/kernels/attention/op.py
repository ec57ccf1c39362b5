"""The paged-attention op: one signature for every implementation."""

import jax
from jax import Array
from jaxtyping import Float, Int32

from jaxinfer.kernels.attention.pages import Attend, NormRopeWrite, PagedRows, Pages, Scoring
from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.policy import XLA, Kernels


@jax.named_scope("attention")
def paged_attention(
    q: Float[Array, "T H D"],
    pages: Pages,
    cu_seqlens_q: Int32[Array, " B1"],
    context_lens: Int32[Array, " B"],
    block_tables: Int32[Array, "B W"],
    *,
    scale: float,
    causal: bool = True,
    window: int | None = None,
    max_query_len: int | None = None,
    shared: SharedPrefixes | None = None,
    kernels: Kernels = XLA,
) -> Float[Array, "T H D"]:
    """Attention of packed ragged queries over keys and values held in pages.

    Query ``i`` of row ``b`` sits at absolute position ``context_lens[b] - query_len[b] + i``
    where ``query_len[b] = cu_seqlens_q[b + 1] - cu_seqlens_q[b]``. The key at position ``p`` of row
    ``b`` is ``pages.k[block_tables[b, p // S], p % S]``; keys of this step are already written.

    Args:
        q: normalised and rotated queries, rows packed one after the other.
        pages: keys and values; slots that no row reaches may hold anything, NaN included.
        cu_seqlens_q: ``[B + 1]`` offsets of the rows in ``q``, starting at 0, never decreasing.
        context_lens: keys of each row, this step's included; 0 marks a padding row.
        block_tables: page ids of each row in order; entries past the context are not used. Ids
            must lie in ``[0, P)``: the host's block pool guarantees it.
        scale: factor of the scores, usually ``D ** -0.5``.
        causal: a query sees keys at its own position and before; False sees the whole context.
        window: a query sees only the last `window` positions up to its own; None sees all.
        max_query_len: static promise about the longest row; 1 means decoding: ``T == B`` and row
            ``b`` is query ``b`` (`cu_seqlens_q` is then ignored, rows of context 0 give zeros).
        shared: which rows begin with the same pages, so that "mosaic" reads these once when it
            decodes; the other implementations compute the same without.
        kernels: chooses the implementation.

    Returns:
        ``[T, H, D]`` in q's dtype; zeros for tokens that belong to no row.

    Raises:
        ValueError: a GPU's kernel was asked for something that only "xla" supports.
    """
    scoring = Scoring(scale, window, causal)
    if max_query_len == 1:
        rows = PagedRows(context_lens, block_tables)
        options = {"shared": shared} if kernels.backend == "mosaic" else {}
        decode: Attend = module_of(kernels.backend, "decode").paged_decode_attention
        return decode(q, pages, rows, scoring, **options)
    if not causal and kernels.backend not in ("xla", "numba"):  # numba's prefill is XLA's
        raise ValueError(f"attention backend {kernels.backend!r} is causal only; use 'xla'")
    prefill: Attend = module_of(kernels.backend, "prefill").paged_prefill_attention
    return prefill(q, pages, PagedRows(context_lens, block_tables, cu_seqlens_q), scoring)


@jax.named_scope("rope_and_write")
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
    kernels: Kernels = XLA,
) -> tuple[Float[Array, "T H D"], Pages]:
    """Normalise, if the model does, and rotate q and k, and write k and v into their pages.

    Args:
        heads: raw projections: ``[T, H, D]`` of the queries, ``[T, K, D]`` of the keys and of the
            values; or a single array ``[T, H + 2K, D]`` with all of them in this order.
        q_norm: weight of the per-head RMSNorm of q; None, like k_norm, for a model without these
            norms.
        k_norm: weight of the per-head RMSNorm of k.
        cos: rotary cosines at each token's position, both halves filled, in the model's dtype.
        sin: rotary sines, in the same form.
        pages: updated in place where the caller donates them.
        slot_mapping: ``page * S + offset`` of each token; padding tokens carry slot 0, which
            belongs to page 0, which no sequence ever holds. Must lie in ``[0, P * S)``.
        eps: epsilon of both norms.
        kernels: chooses the implementation.

    Returns:
        The rotated queries, and the pages with this step's keys and values.
    """
    write: NormRopeWrite = module_of(kernels.backend, "norm_rope_write").norm_rope_write
    return write(heads, q_norm, k_norm, cos, sin, pages, slot_mapping, eps=eps)
