"""RMSNorm, alone and with the rotation and page write of heads, in plain XLA.

Results are rounded to the model's dtype where Hugging Face's models round them.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int32

from jaxinfer.kernels.attention.page_formats import rows_of
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.rounding import narrow, rounded


def rms_norm(
    x: Float[Array, "*batch E"], weight: Float[Array, " E"], eps: float
) -> Float[Array, "*batch E"]:
    """Root-mean-square norm (https://arxiv.org/abs/1910.07467) with Hugging Face's rounding.

    The mean square and its root are float32; the normalized value is rounded to ``x.dtype`` and
    only then multiplied by ``weight``.
    """
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return narrow(rounded(wide * scale, x.dtype) * weight.astype(jnp.float32), x.dtype)


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
    """Normalise, rotate and store; arguments as in attention's `norm_rope_write`."""
    q, k, v = heads if len(heads) == 3 else _split(heads[0], pages.k.shape[2])
    q = _rotate(q if q_norm is None else rms_norm(q, q_norm, eps), cos, sin)
    k = _rotate(k if k_norm is None else rms_norm(k, k_norm, eps), cos, sin)
    rows = rows_of(k, v, pages)
    return q, jax.tree.map(lambda held, new: _write(held, new, slot_mapping), pages, rows)


def _split(merged: Array, num_kv_heads: int) -> list[Array]:
    """Queries, keys and values from an array of all heads."""
    keys_from = merged.shape[1] - 2 * num_kv_heads
    return jnp.split(merged, (keys_from, keys_from + num_kv_heads), axis=1)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding; the halves of a head form the pairs; each operation rounds to x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate((-second, first), axis=-1)
    cos, sin = cos.astype(jnp.float32)[:, None], sin.astype(jnp.float32)[:, None]
    direct = rounded(x.astype(jnp.float32) * cos, x.dtype)
    return rounded(direct + rounded(turned * sin, x.dtype), x.dtype).astype(x.dtype)


def _write(pages: Array, rows: Array, slot_mapping: Array) -> Array:
    """Store one row per token; slots come from the host's block tables and lie in the pool."""
    # Indexed by page and offset, because a reshaped pool can come back in another layout, which
    # costs a copy of it (seen on CPU with one KV head).
    S = pages.shape[1]
    return pages.at[slot_mapping // S, slot_mapping % S].set(rows, mode="drop")
