"""Attention over parts of each row's keys, and the whole made of the parts.

A softmax over several sets of keys is the mean of the softmaxes over each, weighted by the sums of
their exponentials (FlashDecoding, Dao et al. 2023). So devices that hold parts of a sequence attend
each over its own, and exchange a normalised output and the logarithm of its sum for every query.
"""

import importlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.attention.pages import PagedRows, Pages, PartialAttend, Scoring
from jaxinfer.kernels.choice import Backend
from jaxinfer.kernels.policy import XLA, Kernels

_MODULES: Mapping[Backend, tuple[str, str]] = {
    "mosaic": (
        "jaxinfer.kernels.attention.mosaic.partial_decode",
        "jaxinfer.kernels.attention.mosaic.prefill",
    ),
    "xla": ("jaxinfer.kernels.attention.xla", "jaxinfer.kernels.attention.xla"),
}
"""The modules of both functions, which import no kernel that `implementations.MODULES` lacks."""
BACKENDS = tuple(_MODULES)
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
    """
    decode, prefill = _MODULES[kernels.backend]
    if rows.cu_seqlens_q is None:
        attend: PartialAttend = importlib.import_module(decode).partial_decode_attention
    else:
        attend = importlib.import_module(prefill).partial_prefill_attention
    return attend(q, pages, rows, Scoring(scale))


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
