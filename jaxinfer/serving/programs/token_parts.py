"""Runs a long prefill in two halves: one half's all-reduces overlap the other's products.

Under tensor parallelism every layer sums its two outputs over the devices, and until a sum is there
nothing else can be computed of the same tokens. Two halves that go through the layers in turn are
independent but for the pages: the second half's queries read keys that the first has written.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from jaxinfer.serving.programs.step_inputs import StepInputs

# Half of this many tokens give tiles of the narrowest product for two waves on an H200's
# multiprocessors; with fewer, products of halves lose in their last wave what hidden sums save.
_HALVED_TOKENS = 4096
_TILE = 128  # rows of the tiles that products and attention kernels compute


def part_sizes(num_tokens: int, num_devices: int) -> tuple[int, ...]:
    """The numbers of tokens of a prefill's parts: all in one part, or two halves in turn.

    The first half is a whole number of tiles and the larger one.
    """
    if num_devices == 1 or num_tokens < _HALVED_TOKENS:
        return (num_tokens,)
    first = -(-num_tokens // (2 * _TILE)) * _TILE
    return first, num_tokens - first


def cut(whole: StepInputs, sizes: Sequence[int]) -> list[StepInputs]:
    """Parts of the given numbers of tokens, in order; together they are the whole.

    A row may lie across a border: its earlier tokens are then cached context to the later ones,
    as if the prompt had come in chunks.
    """
    parts, begin = [], 0
    for size in sizes:
        end = begin + size
        parts.append(_between(whole, begin, end))
        begin = end
    return parts


def _between(whole: StepInputs, begin: int, end: int) -> StepInputs:
    cu_seqlens = jnp.clip(whole.cu_seqlens, begin, end)
    still_to_come = jnp.maximum(whole.cu_seqlens[1:], end) - jnp.maximum(whole.cu_seqlens[:-1], end)
    context_lens = jnp.where(jnp.diff(cu_seqlens) > 0, whole.context_lens - still_to_come, 0)
    return whole._replace(
        token_ids=whole.token_ids[begin:end],
        positions=whole.positions[begin:end],
        slot_mapping=whole.slot_mapping[begin:end],
        cu_seqlens=cu_seqlens - begin,
        context_lens=context_lens,
        of_tokens={name: array[begin:end] for name, array in whole.of_tokens.items()},
    )
