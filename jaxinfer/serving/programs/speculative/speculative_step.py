"""Decodes with drafts: a row and its drafts are rows of one decode step, and what agrees is kept.

Every layer writes the keys and values of all rows before any of them attends, so the row of a
draft sees the drafts before it, and its hidden state is that of a step of its own. Each token is
drawn with the randomness of its seed and position: a draft that equals the token drawn in its place
changes nothing of the answer, whatever the temperature. (A deterministic draft is accepted with its
probability, as by the rejection rule of arXiv:2211.17192; that the answer stays the same besides
is the drafter invariance of arXiv:2408.07978.)

How many tokens a row gains is known on the device alone, which therefore keeps the lengths and the
tokens of sequences: the next step need not wait until the host has read this one, and a launch may
have several.

Pure functions for one device's shards, as in `steps.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32

from jaxinfer.serving.programs.layout import DecodeShape, SampledRows
from jaxinfer.serving.programs.sample_steps import draw, pack_output
from jaxinfer.serving.programs.speculative.drafter import (
    CORPUS,
    NO_DRAFT,
    Drafter,
    DraftRows,
    DraftState,
)
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.programs.steps import Forward, KVCache, StepContext, feed_last_tokens
from jaxinfer.serving.requests.result import NOT_DRAFTED, REJECTED
from jaxinfer.serving.sampling.layout import Column, SamplerMode, SamplingArrays
from jaxinfer.serving.sampling.sampler import StepOutput

_BEYOND = 2**31 - 1  # writes to it are dropped
_Carry = tuple[KVCache, Array, DraftState, Array]
"""What a step leaves to the next: the pages, the newest tokens, the sequences, and int32 ``[B]``
tokens that each row may still gain."""


def speculative_decode_step(
    params: Mapping[str, Any],
    kv: KVCache,
    packed: Int32[Array, " size"],
    last_tokens: Int32[Array, " slots"],
    state: DraftState,
    allowed: Int32[Array, "slots W"],
    peers: Int32[Array, "one N 2"] | None = None,
    *,
    context: StepContext,
    shape: DecodeShape,
    mode: SamplerMode,
    drafter: Drafter,
    num_steps: int = 1,
    forward: Forward = feed_last_tokens,
) -> tuple[KVCache, Int32[Array, " slots"], DraftState, Int32[Array, "steps N B columns"]]:
    """Feed each row's newest token and the drafts behind it, and draw a token after each of them.

    Args:
        params: the parameter tree.
        kv: the pages; donated.
        packed: a decode batch laid out by the shape, whose `num_tokens` say how many tokens each
            row may gain, up to k + 1 in each step; its tables have room for them. Of
            `context_lens` only 0, for padding, is read.
        last_tokens: newest token of each slot; donated.
        state: the sequences of the slots; donated.
        allowed: the masks of the slots' edits.
        peers: this device's row of `PeerBuffers.peers`; None leaves all sums to XLA.
        context: static.
        shape: the bucket of rows without their drafts; static.
        mode: as in `sample_step`; static.
        drafter: what drafts, with k; static.
        num_steps: steps one after the other, each behind what the one before it accepted; static.
        forward: replaces `feed_last_tokens`; static.

    Returns:
        The pages, the newest tokens, the sequences with what was accepted, and the results for the
        host, of each step N = k + 1 for each row: first what is accepted, then entries whose status
        is `REJECTED`, then `NOT_DRAFTED` ones, which are all that a row has once it has gained what
        it may.
    """
    batch = shape.split(packed)
    head = context.architecture.head_params(params)
    axis = context.tensor_axis(peers)

    def draft(kv: KVCache, rows: DraftRows, state: DraftState) -> tuple[KVCache, Array]:
        return drafter.draft(params, kv, rows, state, context=context, axis=axis)

    def feed(kv: KVCache, rows: StepInputs, tokens: Array) -> tuple[KVCache, Array]:
        return forward(params, kv, rows, tokens, peers, context=context)[:2]

    def sample(hidden: Array, rows: SampledRows) -> StepOutput:
        return draw(head, hidden, rows, allowed, context=context, mode=mode)

    def one_step(carry: _Carry, _: Any) -> tuple[_Carry, Array]:
        return _one_step(carry, batch, drafter, draft, feed, sample)

    carry = kv, last_tokens, state, batch.num_tokens
    if num_steps == 1:
        (kv, last_tokens, state, _), result = one_step(carry, None)
        return kv, last_tokens, state, result[None]
    (kv, last_tokens, state, _), results = lax.scan(one_step, carry, length=num_steps)
    return kv, last_tokens, state, results


def _one_step(
    carry: _Carry,
    batch: StepInputs,
    drafter: Drafter,
    draft: Callable[[KVCache, DraftRows, DraftState], tuple[KVCache, Array]],
    feed: Callable[[KVCache, StepInputs, Array], tuple[KVCache, Array]],
    sample: Callable[[Array, SampledRows], StepOutput],
) -> tuple[_Carry, Int32[Array, "N B columns"]]:
    """One of the steps of `speculative_decode_step`, and its results."""
    kv, last_tokens, state, left = carry
    slots, runs = batch.slots, (batch.context_lens > 0) & (left > 0)
    lengths = jnp.where(runs, state.lengths.at[slots].get(mode="clip"), 0)
    newest = last_tokens.at[slots].get(mode="clip")
    state = drafter.remember(state, slots, lengths - 1, newest[:, None], jnp.minimum(lengths, 1))
    candidates = DraftRows(slots, lengths, newest, left, batch.block_tables)
    kv, drafts = draft(kv, candidates, state)
    steps = jnp.arange(drafter.num_tokens, dtype=jnp.int32)
    drafts = jnp.where(steps < left[:, None] - 1, drafts, NO_DRAFT)
    is_fed = jnp.concatenate([runs[:, None], drafts != NO_DRAFT], axis=1)

    rows = _rows(batch, lengths, is_fed)
    fed = jnp.concatenate([newest[:, None], jnp.maximum(drafts, 0)], axis=1).reshape(-1)
    kv, hidden = feed(kv, rows, fed)
    of_slots = jnp.repeat(slots, drafter.num_tokens + 1)
    output = sample(hidden, SampledRows(of_slots, fed, rows.sampling))

    tokens = output.tokens.reshape(is_fed.shape)
    agrees = jnp.cumprod(tokens[:, :-1] == drafts, axis=1, dtype=jnp.int32)
    num_accepted = 1 + agrees.sum(axis=1, dtype=jnp.int32)
    last = jnp.take_along_axis(tokens, num_accepted[:, None] - 1, axis=1)[:, 0]
    num_gained = jnp.where(runs, num_accepted, 0)
    state = drafter.remember(state, slots, lengths, tokens, num_gained)
    state = state._replace(lengths=state.lengths.at[slots].add(num_gained, mode="drop"))
    is_kept = jnp.arange(drafter.num_tokens + 1) < num_gained[:, None]
    dropped = jnp.where(is_fed, REJECTED, NOT_DRAFTED)
    status = jnp.where(is_kept, output.status.reshape(is_fed.shape), dropped)
    result = pack_output(output._replace(status=status.reshape(-1)))
    result = result.reshape(*is_fed.shape, -1).swapaxes(0, 1)
    last_tokens = last_tokens.at[jnp.where(runs, slots, _BEYOND)].set(last, mode="drop")
    return (kv, last_tokens, state, left - num_gained), result


def _rows(
    batch: StepInputs, lengths: Int32[Array, " B"], is_fed: Int32[Array, "B N"]
) -> StepInputs:
    """The decode rows of a batch's rows and their drafts, one behind the other; others are padding.

    Their `slots` are their own numbers, where the tokens to feed are. Further data of a row's token
    are its drafts', too.
    """
    B, N = is_fed.shape
    contexts = (lengths[:, None] + jnp.arange(N, dtype=jnp.int32)).reshape(-1)
    scalars = jnp.repeat(batch.sampling.scalars, N, axis=0).at[:, Column.POSITION].set(contexts)
    return StepInputs(
        context_lens=jnp.where(is_fed.reshape(-1), contexts, 0),
        slots=jnp.arange(B * N, dtype=jnp.int32),
        block_tables=jnp.repeat(batch.block_tables, N, axis=0),
        sampling=SamplingArrays(scalars),
        of_tokens={name: jnp.repeat(each, N) for name, each in batch.of_tokens.items()},
    )


def write_texts(
    state: DraftState, where: Int32[Array, " 4"], tokens: Int32[Array, " n"]
) -> DraftState:
    """Write tokens that the host knows: of one slot's sequence, or into the corpus.

    Args:
        state: donated.
        where: the slot, or `CORPUS`; the place of the first token there; the number of tokens; and
            the length of the slot's sequence from then on.
        tokens: the tokens, -1 behind a text of the corpus; anything behind that number.
    """
    slot, start, count, length = where
    steps = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    places = jnp.where(steps < count, start + steps, _BEYOND)
    is_slot = slot != CORPUS
    slot = jnp.where(is_slot, slot, _BEYOND)
    lengths = state.lengths.at[slot].set(length, mode="drop")
    history, corpus = state.history, state.corpus
    if history is not None:
        history = history.at[slot, places].set(tokens, mode="drop")
    if corpus is not None:
        corpus = corpus.at[jnp.where(is_slot, _BEYOND, places)].set(tokens + 1, mode="drop")
    return DraftState(history, lengths, corpus)
