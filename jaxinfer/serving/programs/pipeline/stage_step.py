"""A stage's part of a step: the residual stream through its layers, from devices to devices.

Letters as in `steps.py`: T packed tokens, B rows, E hidden.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.matmul.op import begin
from jaxinfer.model.layers.context import Parts
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape, SampledRows
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import KVCache, StepContext, embedded, layer_function


@dataclass(frozen=True)
class Stage:
    """The place of a stage in its pipeline.

    Attributes:
        index: from 0.
        layers: of the model, consecutive.
        num_layers: of the model.
    """

    index: int
    layers: range
    num_layers: int

    @property
    def is_first(self) -> bool:
        """Whether it embeds."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether its layers' output is what the head reads."""
        return self.layers.stop == self.num_layers


def stage_prefill_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    entering: Float[Array, "T E"] | None,
    last_tokens: Int32[Array, " slots"] | None,
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: PrefillShape,
    stage: Stage,
) -> Sequence[Any]:
    """Run a stage's layers over the packed tokens of prompts.

    Args:
        params: the stage's part of the parameter tree, its layers counted from 0.
        kv: the pages of its layers; donated.
        packed: a batch laid out by the shape.
        entering: the residual stream of the stage before; None of the first.
        last_tokens: newest token of each slot, of the first and the last stage: on the first only
            those that the step feeds need be the newest.
        peers: as of `steps.prefill_step`.
        context: static; its model has the stage's layers alone.
        shape: the bucket; static.
        stage: static.

    Returns:
        The pages and the residual stream behind the stage; of the last stage what
        `steps.prefill_step` returns.
    """
    batch = shape.split(packed)
    tokens, ends = _prefilled(batch, last_tokens), jnp.maximum(batch.cu_seqlens[1:] - 1, 0)
    rows = ends if stage.is_last and not shape.all_tokens else None
    kv, x = _run_layers(params, kv, tokens, entering, context, peers, None, rows)
    if not stage.is_last:
        return kv, x
    fed = tokens.token_ids.at[ends].get(mode="clip")
    last = x if rows is not None else x.at[ends].get(mode="clip")
    return kv, *_sampled_from(params, last, fed, batch, context), x if rows is None else None


def stage_decode_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    entering: Float[Array, "B E"] | None,
    last_tokens: Int32[Array, " slots"] | None,
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: DecodeShape,
    stage: Stage,
) -> Sequence[Any]:
    """Run a stage's layers over a token of each row; arguments as of `stage_prefill_step`.

    Returns:
        The pages and the residual stream behind the stage; of the last stage what
        `steps.decode_step` returns.
    """
    batch = shape.split(packed)
    tokens = _decoded(batch, last_tokens, context.block_size)
    kv, x = _run_layers(params, kv, tokens, entering, context, peers, 1, None)
    if not stage.is_last:
        return kv, x
    return kv, *_sampled_from(params, x, tokens.token_ids, batch, context)


def _sampled_from(
    params: Mapping[str, Any],
    last: Float[Array, "B E"],
    fed: Int32[Array, " B"],
    batch: StepInputs,
    context: StepContext,
) -> tuple[Float[Array, "B E"], Int32[Array, " joined"]]:
    """What the head reads of each row, and what its sampler does."""
    hidden = context.architecture.final_hidden(params, last, context.config)
    return hidden, SampledRows(batch.slots, fed, batch.sampling).joined()


def _prefilled(batch: StepInputs, last_tokens: Int32[Array, " slots"] | None) -> StepInputs:
    """A prefill's tokens; those in flight are taken from their slots where these are at hand."""
    tokens, ids = batch.for_layers(), batch.token_ids
    if last_tokens is not None:
        in_flight = last_tokens.at[-1 - ids].get(mode="clip")
        ids = jnp.where(ids < 0, in_flight, ids)
    return tokens._replace(token_ids=ids)


def _decoded(
    batch: StepInputs, last_tokens: Int32[Array, " slots"] | None, block_size: int
) -> StepInputs:
    """A decode's tokens, one a row, with the places that their keys and values go to."""
    count = batch.slots.shape[0]
    positions = jnp.maximum(batch.context_lens - 1, 0)
    blocks = batch.block_tables.at[jnp.arange(count), positions // block_size].get(mode="clip")
    places = blocks * block_size + positions % block_size
    ids = batch.slots  # a stage in the middle reads none
    if last_tokens is not None:
        ids = last_tokens.at[batch.slots].get(mode="clip")
    return batch.for_layers()._replace(
        token_ids=ids,
        positions=positions,
        # Padding rows write to slot 0, of page 0, which is never allocated.
        slot_mapping=jnp.where(batch.context_lens > 0, places, 0),
        cu_seqlens=jnp.arange(count + 1, dtype=jnp.int32),
    )


def _run_layers(
    params: Mapping[str, Any],
    kv: KVCache,
    tokens: StepInputs,
    entering: Float[Array, "T E"] | None,
    context: StepContext,
    peers: Int32[Array, "one N 2"] | None,
    max_query_len: int | None,
    last_rows: Int32[Array, " B"] | None,
) -> tuple[KVCache, Float[Array, "_ E"]]:
    """Every layer of the stage; the first stage embeds, others go on with what enters."""
    config, model, axis = context.config, context.architecture, context.tensor_axis(peers)
    if entering is None:
        residual = embedded(params, tokens, context, axis)
    else:
        residual = begin(entering, kernels=context.kernels)
    rotation = model.rotations(tokens.positions, config, context.dtype)
    rotations = jax.lax.optimization_barrier([rotation])
    step_of = cache(lambda kind: layer_function(kind, context, axis, max_query_len))
    return context.loop(
        params,
        model.layer_kinds(config),
        kv,
        Parts([residual], rotations, [tokens]),
        lambda _, kind: step_of(kind),
        whole=tokens,
        last_rows=last_rows,
    )
