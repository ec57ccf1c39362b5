"""From hidden states to tokens on the devices: head, sampler, multi-step decode, prompt scores.

Pure functions for one device's shards, as in `steps.py`. All results that the host reads of a step
are one int32 array (`result.py` takes it apart): floats are stored by their bits, for one copy.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from jaxinfer.serving.programs.layout import DecodeShape, StepInputs
from jaxinfer.serving.programs.steps import Forward, KVCache, StepContext, feed_last_tokens
from jaxinfer.serving.requests.result import NOT_FINITE, OK
from jaxinfer.serving.sampling.layout import SamplerMode, SamplingArrays, SlotState
from jaxinfer.serving.sampling.logprobs import report_log_softmax
from jaxinfer.serving.sampling.masks import with_masks
from jaxinfer.serving.sampling.sampler import StepOutput, advance, after_first, merge, sample
from jaxinfer.serving.sampling.slot_state import count_sampled, with_slot_state
from jaxinfer.serving.sampling.vocab_axis import VocabAxis

_NO_SLOT = 2**31 - 1  # what is written to it is dropped
_SCORED_ROWS = 128  # prompt tokens whose logits are in memory at once


def sample_step(
    head: Mapping[str, Any],
    hidden: Float[Array, "B E"],
    rows: Int32[Array, "2 B"],
    arrays: SamplingArrays,
    last_tokens: Int32[Array, " slots"],
    allowed: Int32[Array, "slots W"] | None = None,
    *,
    context: StepContext,
    mode: SamplerMode,
) -> tuple[Int32[Array, " slots"], Int32[Array, "B columns"]]:
    """Choose a token for each row and keep it on the device for the next step.

    Args:
        head: from `Architecture.head_params`.
        hidden: final hidden states of the rows.
        rows: each row's slot and the token it was fed last, from the forward step.
        arrays: how each row is sampled.
        last_tokens: newest token of each slot; donated.
        allowed: the masks of the slots' edits; None if no row has one.
        context: static.
        mode: what the batch needs at most, but not "full" or "mixed"; static.

    Returns:
        The newest tokens, and what the host reads (see `result.py`).
    """
    slots, fed = rows[0], rows[1]
    logits = context.architecture.lm_head(head, hidden)
    output = _sample(logits, fed, with_masks(arrays, allowed, slots), context, mode)
    return last_tokens.at[slots].set(output.tokens, mode="drop"), _pack(output)


def sample_full_step(
    head: Mapping[str, Any],
    hidden: Float[Array, "B E"],
    rows: Int32[Array, "2 B"],
    arrays: SamplingArrays,
    last_tokens: Int32[Array, " slots"],
    state: SlotState,
    *,
    context: StepContext,
    mode: SamplerMode,
) -> tuple[Int32[Array, " slots"], SlotState, Int32[Array, "B columns"]]:
    """`sample_step` with each slot's edits and penalties, and likeliest tokens.

    Args:
        head: as in `sample_step`; so are `hidden`, `rows`, `context`.
        arrays: the scalars, and in mode "mixed" which rows are special; all else is in `state`.
        last_tokens: newest token of each slot; donated.
        state: what slots hold; donated.
        mode: "full" or "mixed"; static.

    Returns:
        The newest tokens, what slots hold with these tokens counted, and what the host reads.
    """
    slots, fed = rows[0], rows[1]
    logits = context.architecture.lm_head(head, hidden)
    if mode == "mixed":
        output = _sample_mixed(logits, slots, fed, arrays, state, context)
    else:
        output = _sample(logits, fed, with_slot_state(arrays, state, slots), context, "full")
    axis = VocabAxis(context.axis)
    counts = count_sampled(state.token_counts, slots, output.tokens, arrays.scalars, axis)
    last_tokens = last_tokens.at[slots].set(output.tokens, mode="drop")
    return last_tokens, state._replace(token_counts=counts), _pack(output)


def decode_multi_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    arrays: SamplingArrays,
    last_tokens: Int32[Array, " slots"],
    allowed: Int32[Array, "slots W"] | None = None,
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: DecodeShape,
    mode: SamplerMode,
    num_steps: int,
    forward: Forward = feed_last_tokens,
) -> tuple[KVCache, Int32[Array, " slots"], Int32[Array, "steps B columns"]]:
    """Several decode steps in one program; the tables must have room for all of them.

    Not for modes "full" and "mixed", which are for `decode_full_multi_step`.

    Args:
        params: the parameter tree.
        kv: the pages; donated.
        packed: the first step's batch, laid out as `StepInputs`.
        arrays: how each row is sampled at the first step.
        last_tokens: newest token of each slot; donated.
        allowed: the masks of the slots' edits; None if no row has one.
        peers: this device's row of `PeerBuffers.peers`; None leaves all sums to XLA.
        context: static.
        shape: the bucket; static.
        mode: any but these; static.
        num_steps: static.
        forward: takes the place of `feed_last_tokens`; static.

    Returns:
        The pages, the newest tokens, and what the host reads, stacked over the steps; of a row's
        steps, all after its `num_tokens` yield something without meaning, and change nothing.
    """
    batch, head = shape.split(packed), context.architecture.head_params(params)
    last_tokens = _with_known_tokens(last_tokens, batch)

    def one_step(
        carry: tuple[KVCache, jax.Array], step: jax.Array
    ) -> tuple[tuple[KVCache, jax.Array], jax.Array]:
        kv, last_tokens = carry
        now = _at_step(batch, step)
        kv, hidden, fed = forward(params, kv, now, last_tokens, peers, context=context)
        last_tokens, output = sample_step(
            head,
            hidden,
            jnp.stack([now.slots, fed]),
            after_first(advance(arrays, step), step),
            last_tokens,
            allowed,
            context=context,
            mode=mode,
        )
        return (kv, last_tokens), output

    steps = jnp.arange(num_steps, dtype=jnp.int32)
    (kv, last_tokens), outputs = lax.scan(one_step, (kv, last_tokens), steps)
    return kv, last_tokens, outputs


def decode_full_multi_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    arrays: SamplingArrays,
    last_tokens: Int32[Array, " slots"],
    state: SlotState,
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: DecodeShape,
    mode: SamplerMode,
    num_steps: int,
    forward: Forward = feed_last_tokens,
) -> tuple[KVCache, Int32[Array, " slots"], SlotState, Int32[Array, "steps B columns"]]:
    """`decode_multi_step` with what slots hold.

    Args:
        params: as in `decode_multi_step`; so are `kv`, `packed`, `arrays`, `last_tokens`, `peers`,
            `context`, `shape`, `num_steps` and `forward`.
        state: what slots hold; donated.
        mode: "full" or "mixed"; static.

    Returns:
        The same, and what slots hold with these tokens counted.
    """
    batch, head = shape.split(packed), context.architecture.head_params(params)
    last_tokens = _with_known_tokens(last_tokens, batch)

    def one_step(
        carry: tuple[KVCache, jax.Array, SlotState], step: jax.Array
    ) -> tuple[tuple[KVCache, jax.Array, SlotState], jax.Array]:
        kv, last_tokens, state = carry
        now = _at_step(batch, step)
        kv, hidden, fed = forward(params, kv, now, last_tokens, peers, context=context)
        last_tokens, state, output = sample_full_step(
            head,
            hidden,
            jnp.stack([now.slots, fed]),
            after_first(advance(arrays, step), step),
            last_tokens,
            state,
            context=context,
            mode=mode,
        )
        return (kv, last_tokens, state), output

    steps = jnp.arange(num_steps, dtype=jnp.int32)
    (kv, last_tokens, state), outputs = lax.scan(one_step, (kv, last_tokens, state), steps)
    return kv, last_tokens, state, outputs


def _with_known_tokens(
    last_tokens: Int32[Array, " slots"], batch: StepInputs
) -> Int32[Array, " slots"]:
    """The newest tokens, with those that the host knows better."""
    slots = jnp.where(batch.known_tokens > 0, batch.slots, last_tokens.shape[0])
    return last_tokens.at[slots].set(batch.known_tokens - 1, mode="drop")


def _at_step(batch: StepInputs, step: jax.Array) -> StepInputs:
    """A multi-step decode's batch at one of its steps.

    Rows that have all their tokens read and write nothing more; nor does padding.
    """
    runs = step < batch.num_tokens
    return batch._replace(
        context_lens=jnp.where(runs, batch.context_lens + step, 0),
        slots=jnp.where(runs, batch.slots, _NO_SLOT),
    )


def prompt_logprobs_step(
    head: Mapping[str, Any],
    residual: Float[Array, "T E"],
    targets: Int32[Array, " T"],
    *,
    context: StepContext,
) -> Int32[Array, "T columns"]:
    """Log-probabilities of given next tokens, at temperature 1, a few rows of logits at a time.

    Args:
        head: from `Architecture.head_params`.
        residual: the residual stream from `prefill_step`.
        targets: the token that follows each one; ids in [0, V), anything for padding.
        context: static.

    Returns:
        The same columns as `sample_full_step`, with the targets as chosen tokens.
    """
    axis, model = VocabAxis(context.axis), context.architecture
    T = targets.shape[0]
    chunk = min(_SCORED_ROWS, T)
    pad = -T % chunk

    def score(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, chosen = block
        logits = model.lm_head(head, model.final_hidden(head, x, context.config))
        highest = axis.stack(logits.max(-1)).max(-1)
        total = axis.sum(jnp.exp(logits - highest[:, None]).sum(-1))
        report = report_log_softmax(logits, chosen, highest, total, context.num_logprobs, axis)
        is_finite = jnp.isfinite(highest) & jnp.isfinite(total)
        return _pack(StepOutput(chosen, jnp.where(is_finite, OK, NOT_FINITE), *report))

    blocks = (
        jnp.pad(residual, ((0, pad), (0, 0))).reshape(-1, chunk, residual.shape[1]),
        jnp.pad(targets, (0, pad)).reshape(-1, chunk),
    )
    packed = lax.map(score, blocks)
    return packed.reshape(T + pad, -1)[:T]


@jax.named_scope("sample")
def _sample_mixed(
    logits: Float[Array, "B V"],
    slots: Int32[Array, " B"],
    fed: Int32[Array, " B"],
    arrays: SamplingArrays,
    state: SlotState,
    context: StepContext,
) -> StepOutput:
    """Special rows sampled in full, from a copy of their logits, and the others by temperature."""
    special: Int32[Array, " K"] = arrays.special
    of_special = functools.partial(jnp.take, indices=special, axis=0, mode="clip")
    arrays_of_special = with_slot_state(
        SamplingArrays(of_special(arrays.scalars)), state, of_special(slots)
    )
    full = _sample(
        of_special(logits), of_special(fed), arrays_of_special, context, "full", truncates=False
    )
    plain = with_masks(arrays, state.edits.allowed, slots)
    return merge(_sample(logits, fed, plain, context, "temperature"), full, special)


@jax.named_scope("sample")
def _sample(
    logits: Float[Array, "B V"],
    fed: Int32[Array, " B"],
    arrays: SamplingArrays,
    context: StepContext,
    mode: SamplerMode,
    *,
    truncates: bool = True,
) -> StepOutput:
    return sample(
        logits,
        arrays,
        mode=mode,
        truncates=truncates,
        axis=context.axis,
        max_logprobs=context.num_logprobs,
        logprobs_mode=context.logprobs_mode,
        last_token_ids=fed,
        logits_processor=context.logits_processor,
        sampler=context.sampler,
    )


@jax.named_scope("sample")
def _pack(output: StepOutput) -> jax.Array:
    """All of a step's results in one int32 array ``[B, columns]``; `result.py` is its inverse."""

    def bits(x: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(x, jnp.int32)

    columns = [output.tokens[:, None], output.status[:, None]]
    if output.logprobs is not None:
        columns.append(bits(output.logprobs)[:, None])
    if output.ranks is not None and output.top_logprobs is not None:
        columns += [output.ranks[:, None], output.top_ids, bits(output.top_logprobs)]
    return jnp.concatenate(columns, axis=1)
