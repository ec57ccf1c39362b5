"""What steps keep on the devices, pages above all: allocated zeroed, freed, counted in bytes."""

import math

import jax
import jax.numpy as jnp

from jaxinfer.kernels.attention.page_limit import most_pages
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import KVCache
from jaxinfer.serving.sampling.layout import SlotState


def block_bytes(programs: Programs) -> int:
    """Bytes of one block on one device: keys and values of every layer."""
    pages = programs.pages
    shape = pages.sharding.shard_shape(pages.shape)
    layers = programs.context.config.num_hidden_layers
    return 2 * layers * math.prod(shape[1:]) * pages.dtype.itemsize


def most_blocks(programs: Programs) -> int:
    """The most blocks that the kernels can address, by what a device holds of each."""
    pages = programs.pages
    _, block_size, kv_heads, _ = pages.sharding.shard_shape(pages.shape)
    return most_pages(block_size, kv_heads)


def allocate(programs: Programs) -> tuple[KVCache, jax.Array, SlotState]:
    """Zeroed pages of every layer, last tokens and slots, sharded as the steps want them."""
    pages, others = programs.pages, (programs.last_tokens, programs.slot_state)
    make_pages = jax.jit(lambda: _zeros(pages), out_shardings=pages.sharding)
    make_others = jax.jit(
        lambda: jax.tree.map(_zeros, others),
        out_shardings=jax.tree.map(lambda struct: struct.sharding, others),
    )
    kv = tuple(
        (make_pages(), make_pages()) for _ in range(programs.context.config.num_hidden_layers)
    )
    return kv, *make_others()


def _zeros(struct: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(struct.shape, struct.dtype)


def free(*trees: object) -> None:
    """Give back the memory of all arrays now, whoever still refers to them."""
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.delete()
