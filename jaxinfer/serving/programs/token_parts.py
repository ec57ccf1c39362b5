"""Cuts a long prefill in two, so that one half's all-reduces run beside the other's products.

Under tensor parallelism every layer sums its two outputs over the devices, and until a sum is there
nothing else can be computed of the same tokens. Two halves that go through the layers in turn are
independent but for the pages: the second half's queries read keys that the first has written.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int32

from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes

# Half as many tokens fill an H200's multiprocessors with tiles of the narrowest product twice over;
# below, products of halves lose in their last wave about what the hidden sums would save.
_HALVED_TOKENS = 4096
_TILE = 128  # rows of the tiles that products and attention kernels compute


class TokenPart(NamedTuple):
    """Packed tokens that go through the layers together, and the rows they belong to.

    Attributes:
        token_ids: ids in [0, V).
        positions: absolute.
        slot_mapping: where keys and values go.
        cu_seqlens: offsets of the rows in these tokens; ignored when decoding.
        context_lens: keys of each row up to the last of these tokens; 0 for a row without any.
        block_tables: page ids of each row.
        shared: which rows begin with the same pages, when decoding; None if nobody looked.
    """

    token_ids: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    slot_mapping: Int32[Array, " T"]
    cu_seqlens: Int32[Array, " B1"]
    context_lens: Int32[Array, " B"]
    block_tables: Int32[Array, "B W"]
    shared: SharedPrefixes | None = None


def part_sizes(num_tokens: int, num_devices: int) -> tuple[int, ...]:
    """How many tokens of a prefill go through the layers together: all, or two halves in turn.

    The first half is a whole number of tiles and the larger one.
    """
    if num_devices == 1 or num_tokens < _HALVED_TOKENS:
        return (num_tokens,)
    first = -(-num_tokens // (2 * _TILE)) * _TILE
    return first, num_tokens - first


def cut(whole: TokenPart, sizes: Sequence[int]) -> list[TokenPart]:
    """Parts of so many tokens, in order; together they are the whole. No sizes are one part.

    A row may lie across a border: its earlier tokens are then cached context to the later ones,
    as if the prompt had come in chunks.
    """
    if len(sizes) < 2:
        return [whole]
    parts, begin = [], 0
    for size in sizes:
        end = begin + size
        parts.append(_between(whole, begin, end))
        begin = end
    return parts


def _between(whole: TokenPart, begin: int, end: int) -> TokenPart:
    cu_seqlens = jnp.clip(whole.cu_seqlens, begin, end)
    still_to_come = jnp.maximum(whole.cu_seqlens[1:], end) - jnp.maximum(whole.cu_seqlens[:-1], end)
    context_lens = jnp.where(jnp.diff(cu_seqlens) > 0, whole.context_lens - still_to_come, 0)
    return TokenPart(
        whole.token_ids[begin:end],
        whole.positions[begin:end],
        whole.slot_mapping[begin:end],
        cu_seqlens - begin,
        context_lens,
        whole.block_tables,
    )
