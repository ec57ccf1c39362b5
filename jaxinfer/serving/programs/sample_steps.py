"""From hidden states to tokens on the devices: head, sampler, prompt scores.

Pure functions for one device's shards, as in `steps.py`. All of a step's results for the host are
one int32 array, for a single copy (`result.py` splits it); floats are stored by their bits.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from jaxinfer.serving.programs.layout import DecodeShape, SampledRows
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import Forward, KVCache, StepContext, feed_last_tokens
from jaxinfer.serving.requests.result import NOT_FINITE, OK
from jaxinfer.serving.sampling.layout import Column, SamplerMode, SamplingArrays, SlotState
from jaxinfer.serving.sampling.logprobs import report_log_softmax
from jaxinfer.serving.sampling.masks import with_masks
from jaxinfer.serving.sampling.measures import Drawn, Measures, measure
from jaxinfer.serving.sampling.sampler import StepOutput, merge, sample
from jaxinfer.serving.sampling.slot_state import count_sampled, with_slot_state
from jaxinfer.serving.sampling.vocab_axis import VocabAxis

_NO_SLOT = 2**31 - 1  # writes to it are dropped
_SCORED_ROWS = 128  # prompt tokens whose logits are in memory at once


def sample_step(
    head: Mapping[str, Any],
    hidden: Float[Array, "B E"],
    rows: SampledRows,
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
        rows: from the forward step.
        last_tokens: newest token of each slot; donated.
        allowed: the masks of the slots' edits; None if no row has one.
        context: static.
        mode: one that suffices for every row, but not "full" or "mixed"; static.

    Returns:
        The newest tokens, and the results for the host (see `result.py`).
    """
    output = draw(head, hidden, rows, allowed, context=context, mode=mode)
    return last_tokens.at[rows.slots].set(output.tokens, mode="drop"), pack_output(output)


def draw(
    head: Mapping[str, Any],
    hidden: Float[Array, "B E"],
    rows: SampledRows,
    allowed: Int32[Array, "slots W"] | None,
    *,
    context: StepContext,
    mode: SamplerMode,
) -> StepOutput:
    """Choose a token for each row; arguments as of `sample_step`."""
    slots, fed, arrays = rows
    logits = context.architecture.lm_head(head, hidden)
    return _sample(logits, fed, with_masks(arrays, allowed, slots), context, mode)


def sample_full_step(
    head: Mapping[str, Any],
    hidden: Float[Array, "B E"],
    rows: SampledRows,
    last_tokens: Int32[Array, " slots"],
    state: SlotState,
    labels: Int32[Array, "B L"] | None = None,
    *,
    context: StepContext,
    mode: SamplerMode,
) -> tuple[Int32[Array, " slots"], SlotState, Int32[Array, "B columns"]]:
    """`sample_step` with each slot's edits and penalties, and likeliest tokens.

    Args:
        head: as in `sample_step`; so are `hidden`, `rows`, `context`.
        last_tokens: newest token of each slot; donated.
        state: the slots' state; donated.
        labels: in mode "measured", token ids of each row whose log-probabilities it reports.
        mode: "full", "mixed" or "measured"; static.

    Returns:
        The newest tokens, the slots' state with these tokens counted, and the results for the host.
    """
    slots, fed, arrays = rows
    logits = context.architecture.lm_head(head, hidden)
    if mode == "mixed":
        output = _sample_mixed(logits, slots, fed, arrays, state, context)
    else:
        arrays_of_slots = with_slot_state(arrays, state, slots)
        measured = None if labels is None else measuring(labels, context)
        output = _sample(logits, fed, arrays_of_slots, context, mode, measure=measured)
    axis = VocabAxis(context.axis)
    counts = count_sampled(state.token_counts, slots, output.tokens, arrays.scalars, axis)
    last_tokens = last_tokens.at[slots].set(output.tokens, mode="drop")
    return last_tokens, state._replace(token_counts=counts), pack_output(output)


def sampled_decode_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    last_tokens: Int32[Array, " slots"],
    allowed: Int32[Array, "slots W"],
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: DecodeShape,
    mode: SamplerMode,
    num_steps: int = 1,
    forward: Forward = feed_last_tokens,
) -> tuple[KVCache, Int32[Array, " slots"], Int32[Array, "*steps B columns"]]:
    """`steps.decode_step` and `sample_step` in one program, for one launch instead of two.

    Args as of `steps.decode_step` and `sample_step`, but for:
        packed: the first step's batch, laid out by the shape; tables have room for all steps.
        last_tokens: newest token of each slot; donated.
        num_steps: more than one for a multi-step decode, in which each step feeds the tokens
            sampled by the one before it; static.

    Returns:
        The pages, the newest tokens, and the results for the host (see `result.py`), stacked over
        the steps of a multi-step decode: a row's steps after its `num_tokens` have meaningless
        results, and change nothing.
    """
    head = context.architecture.head_params(params)
    first = shape.split(packed)

    def one_step(carry: tuple[KVCache, Array], step: Any) -> tuple[tuple[KVCache, Array], Array]:
        kv, last_tokens = carry
        batch = first if num_steps == 1 else _at_step(first, step)
        kv, hidden, fed = forward(params, kv, batch, last_tokens, peers, context=context)
        rows = SampledRows(batch.slots, fed, batch.sampling)
        last_tokens, output = sample_step(
            head, hidden, rows, last_tokens, allowed, context=context, mode=mode
        )
        return (kv, last_tokens), output

    if num_steps == 1:
        (kv, last_tokens), outputs = one_step((kv, last_tokens), 0)
    else:
        steps = jnp.arange(num_steps, dtype=jnp.int32)
        (kv, last_tokens), outputs = lax.scan(one_step, (kv, last_tokens), steps)
    return kv, last_tokens, outputs


def _at_step(first: StepInputs, step: Array) -> StepInputs:
    """A multi-step decode's batch at one of its steps.

    Rows that have all their tokens, and padding, neither read nor write the pages.
    """
    runs, sampling = step < first.num_tokens, first.sampling
    scalars = sampling.scalars.at[:, Column.POSITION].add(step)
    return first._replace(
        context_lens=jnp.where(runs, first.context_lens + step, 0),
        slots=jnp.where(runs, first.slots, _NO_SLOT),
        sampling=sampling._replace(scalars=scalars),
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
        return pack_output(StepOutput(chosen, jnp.where(is_finite, OK, NOT_FINITE), *report))

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
    """Sample special rows in full, from a copy of their logits, and the others by temperature."""
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
    measure: Callable[[Drawn], Measures] | None = None,
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
        measure=measure,
    )


def measuring(labels: Int32[Array, "B L"], context: StepContext) -> Callable[[Drawn], Measures]:
    """What measures rows as an engine reports them, with these labels."""
    return functools.partial(
        measure,
        labels=labels,
        count=context.num_logprobs,
        logprobs_mode=context.logprobs_mode,
        axis=VocabAxis(context.axis),
    )


@jax.named_scope("sample")
def pack_output(output: StepOutput) -> jax.Array:
    """All of a step's results in one int32 array ``[B, columns]``; `result.py` is its inverse."""

    def bits(x: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(x, jnp.int32)

    columns = [output.tokens[:, None], output.status[:, None], bits(output.logprobs)[:, None]]
    if output.ranks is not None and output.top_logprobs is not None:
        columns += [output.ranks[:, None], output.top_ids, bits(output.top_logprobs)]
    if output.measures is not None:
        columns.append(output.measures.pack())
    return jnp.concatenate(columns, axis=1)
