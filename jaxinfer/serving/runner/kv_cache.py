"""The device memory of steps: allocates and frees KV pages, last tokens, slots; copies blocks."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache
from jaxinfer.serving.programs.kinds.copy_blocks import COPIES_A_STEP, CopyBlocksKey
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.speculative.drafter import DraftState
from jaxinfer.serving.programs.steps import KVCache
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.sampling.layout import SlotState

Arrays = tuple[KVCache, jax.Array, SlotState | None, DraftState | None]
"""What is allocated together; the KV cache comes first."""


def allocate(programs: Programs, cache_directory: str | None = "") -> Arrays:
    """Zeroed pages of every layer, last tokens and slots, sharded as the steps want them.

    And the texts that drafts are made from, in an engine with drafts: a corpus without a text. An
    engine that samples nothing has no slots.
    """
    others = programs.last_tokens, programs.kept_slots, programs.draft_state
    structs, tree = jax.tree.flatten(others)
    last_tokens, slots, drafts = jax.tree.unflatten(tree, _maker(tuple(structs), cache_directory)())
    kv = jax.tree.map(lambda part: _maker((part,), cache_directory)()[0], programs.kv)
    return kv, last_tokens, slots, drafts


# Compiled once for all layers of the same shape, and not again when a cache is rebuilt.
@functools.lru_cache(maxsize=32)
def _maker(
    structs: tuple[jax.ShapeDtypeStruct, ...], cache_directory: str | None
) -> Callable[[], list[jax.Array]]:
    make = jax.jit(
        lambda: [jnp.zeros(struct.shape, struct.dtype) for struct in structs],
        out_shardings=[struct.sharding for struct in structs],
    )
    with persistent_cache(cache_directory):
        return make.lower().compile()


def free(*trees: object) -> None:
    """Free the memory of all arrays now, even if references to them remain."""
    for leaf in jax.tree.leaves(trees):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            leaf.delete()


def copy_blocks(
    kv: KVCache,
    pairs: Sequence[tuple[int, int]],
    program: Callable[[CopyBlocksKey], Callable[..., KVCache]],
    whole: jax.sharding.Sharding,
) -> KVCache:
    """Copy blocks to other blocks, in every layer.

    Args:
        kv: the pages; donated.
        pairs: (block to read, block to write); no block is both read and written.

    Raises:
        ValueError: a block number is out of range; nothing is copied then.
    """
    ids = np.array(pairs, np.int32).T
    num_blocks = kv[0].k.shape[0]
    if ids.min() < 1 or ids.max() >= num_blocks:
        raise ValueError(f"blocks must be in [1, {num_blocks}) to be copied: {list(pairs)}")
    small, large = COPIES_A_STEP
    size = small if len(pairs) <= small else large
    for start in range(0, len(pairs), size):
        part = ids[:, start : start + size]
        padded = np.zeros((2, size), np.int32)
        padded[:, : part.shape[1]] = part
        kv = program(CopyBlocksKey(size))(kv, upload(padded, whole))
    return kv
