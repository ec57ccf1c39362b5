"""Runs a long prefill in two halves: one half's all-reduces overlap the other's products.

Under tensor parallelism every layer sums its two outputs over the devices, and until a sum is there
nothing else can be computed of the same tokens. Two halves that go through the layers in turn are
independent but for the pages: the second half's queries read keys that the first has written.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.serving.programs.layout import StepInputs
from jaxinfer.serving.programs.steps import (
    KVCache,
    LayerPages,
    Rotation,
    StepContext,
    embedded,
    layer_function,
    write_and_attend,
)

# Half as many tokens fill an H200's multiprocessors with tiles of the narrowest product twice over;
# below, products of halves lose in their last wave about what the hidden sums would save.
_HALVED_TOKENS = 4096
_TILE = 128  # rows of the tiles that products and attention kernels compute


def part_sizes(num_tokens: int, num_devices: int) -> tuple[int, ...]:
    """How many tokens of a prefill go through the layers together: all, or two halves in turn.

    The first half is a whole number of tiles and the larger one.
    """
    if num_devices == 1 or num_tokens < _HALVED_TOKENS:
        return (num_tokens,)
    first = -(-num_tokens // (2 * _TILE)) * _TILE
    return first, num_tokens - first


def run_parts(
    params: Mapping[str, Any],
    kv: KVCache,
    tokens: StepInputs,
    context: StepContext,
    axis: TensorAxis,
    *,
    sizes: Sequence[int],
    last_rows: Int32[Array, " B"] | None = None,
) -> tuple[KVCache, Float[Array, "_ E"]]:
    """`steps._run_layers` with parts of these numbers of tokens going through the layers in turn.

    With `last_rows` the last layer takes all tokens at once.
    """
    config, model = context.config, context.architecture
    layer_step = _overlapped_layer_function(context, axis)
    parts, apart = cut(tokens, sizes), axis.alone()  # sums of parts do not depend on each other
    residuals = [embedded(params, part, context, apart) for part in parts]
    rotations = [model.rotation(part.positions, config, residuals[0].x.dtype) for part in parts]
    rotations = jax.lax.optimization_barrier(rotations)
    num_apart = config.num_hidden_layers - (last_rows is not None)
    pages_of_layers = []
    for index in range(num_apart):
        layer = params["model"]["layers"][str(index)]
        pages, residuals = layer_step(layer, kv[index], residuals, rotations, parts)
        pages_of_layers.append(pages)
    residual = ResidualStream(jnp.concatenate([residual.summed() for residual in residuals]))
    if last_rows is not None:
        cos, sin = (jnp.concatenate(halves) for halves in zip(*rotations, strict=True))
        layer, whole = params["model"]["layers"][str(num_apart)], layer_function(context, axis)
        pages, residual = whole(layer, kv[num_apart], residual, (cos, sin), tokens, last_rows)
        pages_of_layers.append(pages)
    return tuple(pages_of_layers), residual.summed()


def _overlapped_layer_function(context: StepContext, axis: TensorAxis) -> Any:
    """``(layer, pages, residuals, rotations, parts) -> (pages, residuals)``."""
    config, backend, model = context.config, context.backend, context.architecture

    @jax.jit
    def layer_step(
        layer: Mapping[str, Any],
        pages: LayerPages,
        residuals: list[ResidualStream],
        rotations: list[Rotation],
        parts: list[StepInputs],
    ) -> tuple[LayerPages, list[ResidualStream]]:
        def attend(
            part: StepInputs,
            rotation: Rotation,
            attention: Mapping[str, Any],
            heads: tuple[Array, ...],
        ) -> Array:
            nonlocal pages
            mixed, pages = write_and_attend(attention, heads, rotation, pages, part, context)
            return mixed

        attends = [functools.partial(attend, *of) for of in zip(parts, rotations, strict=True)]
        residuals = model.overlapped_layer(layer, residuals, config, attends, axis, backend)
        return pages, residuals

    return layer_step


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
