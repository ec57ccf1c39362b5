"""Norm, rotation and page write of a step's heads in plain XLA: every backend's but Mosaic's."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int32


def norm_rope_write(
    heads: tuple[Float[Array, "T _ D"], ...],
    q_norm: Float[Array, " D"],
    k_norm: Float[Array, " D"],
    cos: Float[Array, "T D"],
    sin: Float[Array, "T D"],
    k_pages: Float[Array, "P S K D"],
    v_pages: Float[Array, "P S K D"],
    slot_mapping: Int32[Array, " T"],
    *,
    eps: float,
) -> tuple[Float[Array, "T H D"], Float[Array, "P S K D"], Float[Array, "P S K D"]]:
    """Normalise, rotate and store; arguments as in `norm_rope_write` of `attention/op.py`."""
    q, k, v = heads if len(heads) == 3 else _split(heads[0], k_pages.shape[2])
    q = _rotate(_rms_norm(q, q_norm, eps), cos, sin)
    k = _rotate(_rms_norm(k, k_norm, eps), cos, sin)
    return q, _write(k_pages, k, slot_mapping), _write(v_pages, v, slot_mapping)


def _split(merged: Array, num_kv_heads: int) -> list[Array]:
    """Queries, keys and values from an array of all heads."""
    keys_from = merged.shape[1] - 2 * num_kv_heads
    return jnp.split(merged, (keys_from, keys_from + num_kv_heads), axis=1)


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """RMSNorm over the last axis, rounded where Hugging Face rounds: also before the weight."""
    wide = x.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return _rounded(_rounded(normed, x.dtype) * weight.astype(jnp.float32), x.dtype).astype(x.dtype)


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding; the halves of a head form the pairs; each operation rounds to x's dtype."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate((-second, first), axis=-1)
    cos, sin = cos.astype(jnp.float32)[:, None], sin.astype(jnp.float32)[:, None]
    direct = _rounded(x.astype(jnp.float32) * cos, x.dtype)
    return _rounded(direct + _rounded(turned * sin, x.dtype), x.dtype).astype(x.dtype)


def _rounded(x: Array, dtype: jnp.dtype) -> Array:
    """Float32 x with the values that `dtype` holds; a plain cast is one that XLA may skip.

    The model's forward rounds in the same places and in the same way; a test holds them equal.
    """
    info = jnp.finfo(dtype)
    if info.bits >= 32:
        return x
    kept = lax.reduce_precision(x, info.nexp, info.nmant)
    # reduce_precision flushes subnormals to zero, which float16 has in reach.
    return jnp.where(jnp.abs(x) < float(info.tiny), x, kept) if dtype == jnp.float16 else kept


def _write(pages: Array, rows: Array, slot_mapping: Array) -> Array:
    """Store one row per token; slots come from the host's block tables and lie in the pool."""
    # Indexed by page and offset, because a reshaped pool can come back in another layout, which
    # costs a copy of it (seen on CPU with one KV head).
    S = pages.shape[1]
    return pages.at[slot_mapping // S, slot_mapping % S].set(rows, mode="drop")
