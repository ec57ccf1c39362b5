"""What steps keep on the devices, pages above all: allocated zeroed, and freed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import KVCache
from jaxinfer.serving.sampling.layout import SlotState


def allocate(programs: Programs) -> tuple[KVCache, jax.Array, SlotState]:
    """Zeroed pages of every layer, last tokens and slots, sharded as the steps want them."""
    pages, others = programs.kv, (programs.last_tokens, programs.slot_state)
    # Compiled once for all layers of the same shape.
    make = {each: _maker(each) for layer in pages for each in layer}
    make_others = jax.jit(
        lambda: jax.tree.map(_zeros, others),
        out_shardings=jax.tree.map(lambda struct: struct.sharding, others),
    )
    return tuple((make[k](), make[v]()) for k, v in pages), *make_others()


def _maker(struct: jax.ShapeDtypeStruct) -> Callable[[], jax.Array]:
    return jax.jit(lambda: _zeros(struct), out_shardings=struct.sharding)


def _zeros(struct: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(struct.shape, struct.dtype)


def free(*trees: object) -> None:
    """Give back the memory of all arrays now, even if something still refers to them."""
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.delete()
