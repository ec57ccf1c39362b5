"""Allocates and frees the device memory of steps: KV pages, last tokens and slots."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.steps import KVCache
from jaxinfer.serving.sampling.layout import SlotState


def allocate(programs: Programs) -> tuple[KVCache, jax.Array, SlotState]:
    """Zeroed pages of every layer, last tokens and slots, sharded as the steps want them."""
    pages, others = programs.kv, (programs.last_tokens, programs.slot_state)
    structs, tree = jax.tree.flatten(others)
    last_tokens, slots = jax.tree.unflatten(tree, _maker_of_all(tuple(structs))())
    return tuple((_maker(k)(), _maker(v)()) for k, v in pages), last_tokens, slots


# Compiled once for all layers of the same shape, and not again when a cache is rebuilt.
@functools.lru_cache(maxsize=16)
def _maker(struct: jax.ShapeDtypeStruct) -> Callable[[], jax.Array]:
    return jax.jit(lambda: _zeros(struct), out_shardings=struct.sharding)


@functools.lru_cache(maxsize=16)
def _maker_of_all(structs: tuple[Any, ...]) -> Callable[[], list[jax.Array]]:
    return jax.jit(
        lambda: [_zeros(struct) for struct in structs],
        out_shardings=[struct.sharding for struct in structs],
    )


def _zeros(struct: jax.ShapeDtypeStruct) -> jax.Array:
    return jnp.zeros(struct.shape, struct.dtype)


def free(*trees: object) -> None:
    """Give back the memory of all arrays now, even if something still refers to them."""
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.delete()
