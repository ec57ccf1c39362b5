"""The write of heads of which only the first dimensions rotate."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.attention.op import norm_rope_write
from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import Heads, Params, Rotation
from jaxinfer.model.rope import apply_rope


def write_heads(
    attention: Params,
    heads: Heads,
    rotation: Rotation,
    pages: Pages,
    slot_mapping: Int32[Array, " T"],
    config: ModelConfig,
    kernels: Kernels,
) -> tuple[Float[Array, "T H D"], Pages]:
    """As `decoder.write_heads`, of heads without norms.

    Kernels pair the halves of whole heads. Where a part rotates, XLA does it before, and the kernel
    only writes: its own rotation is the one that turns nothing.
    """
    if rotation[0].shape[-1] == config.head_dim:
        return decoder.write_heads(attention, heads, rotation, pages, slot_mapping, config, kernels)
    q, k, v = heads if len(heads) == 3 else _split(heads[0], pages.k.shape[2])
    with jax.named_scope("rope_and_write"):
        q, k = (apply_rope(each, *rotation) for each in (q, k))
    ones = jnp.ones((q.shape[0], config.head_dim), q.dtype)
    return norm_rope_write(
        (q, k, v),
        None,
        None,
        ones,
        jnp.zeros_like(ones),
        pages,
        slot_mapping,
        eps=config.rms_norm_eps,
        kernels=kernels,
    )


def _split(merged: jax.Array, num_kv_heads: int) -> list[jax.Array]:
    """Queries, keys and values of one array with all heads in turn."""
    keys_from = merged.shape[1] - 2 * num_kv_heads
    return jnp.split(merged, (keys_from, keys_from + num_kv_heads), axis=1)
