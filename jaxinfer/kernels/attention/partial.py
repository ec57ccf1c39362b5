"""Attention over parts of each row's keys, and the whole made of the parts.

A softmax over several sets of keys is the mean of the softmaxes over each, weighted by the sums of
their exponentials (FlashDecoding, Dao et al. 2023). So devices that hold parts of a sequence attend
each over its own, and exchange a normalised output and the logarithm of its sum for every query.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.attention import xla
from jaxinfer.kernels.attention.pages import PagedRows, Pages, PartialAttend, Scoring
from jaxinfer.kernels.choice import Backend
from jaxinfer.kernels.policy import XLA, Kernels

BACKENDS = ("mosaic", "xla")
"""The implementations that attend over parts."""

# In the place of minus infinity, so that no difference of two is NaN.
_NO_KEYS = -1e30


@jax.named_scope("attention")
def partial_attention(
    q: Float[Array, "T H D"],
    pages: Pages,
    rows: PagedRows,
    *,
    scale: float,
    kernels: Kernels = XLA,
) -> tuple[Float[Array, "T H D"], Float[Array, "T H"]]:
    """Causal attention of packed queries over the keys in these pages, which are some of a row's.

    Positions count these keys alone: query ``i`` of row ``b`` sees the first
    ``context_lens[b] - query_len[b] + i + 1`` of them, which for the first query may be none.

    Args:
        q: normalised and rotated queries.
        pages: keys and values.
        rows: as of `op.paged_attention`; without `cu_seqlens_q` row ``b`` is query ``b``, which
            sees all keys of its row.
        scale: factor of the scores.
        kernels: chooses the implementation, of `BACKENDS`.

    Returns:
        Normalised outputs, in float32 or in q's dtype, and base-2 logarithms of the sums of the
        exponentials of the scores, float32. A query without keys has zeros, and -1e30 or less.

    Raises:
        ValueError: the backend is none of these; an engine never chooses such a one.
    """
    decode, prefill = _functions(kernels.backend)
    attend = decode if rows.cu_seqlens_q is None else prefill
    return attend(q, pages, rows, Scoring(scale))


def _functions(backend: Backend) -> tuple[PartialAttend, PartialAttend]:
    """The functions of a backend, for decoding and for prefills."""
    if backend == "mosaic":  # it imports GPU-only packages, so it loads when it is first chosen
        from jaxinfer.kernels.attention.mosaic import partial_decode, prefill

        return partial_decode.partial_decode_attention, prefill.partial_prefill_attention
    if backend == "xla":
        return xla.partial_decode_attention, xla.partial_prefill_attention
    raise ValueError(f"{backend} can't attend over parts; take one of {', '.join(BACKENDS)}")


@jax.named_scope("attention")
def merged(
    outputs: Float[Array, "parts T H D"], log_sums: Float[Array, "parts T H"]
) -> Float[Array, "T H D"]:
    """Attention over all keys, in float32, of that over each part, added in the parts' order.

    Zeros for queries without keys.
    """
    log_sums = jnp.maximum(log_sums, _NO_KEYS)
    largest = log_sums.max(axis=0)
    total = jnp.zeros_like(largest)
    mixed = jnp.zeros(outputs.shape[1:], jnp.float32)
    for output, log_sum in zip(outputs, log_sums, strict=True):
        weight = jnp.exp2(log_sum - largest)
        total = total + weight
        mixed = mixed + output.astype(jnp.float32) * weight[..., None]
    return mixed / total[..., None]
