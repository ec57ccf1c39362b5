"""What slots keep on the device equals what the host says and the sampler drew, on any mesh."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.requests.result import OK
from jaxinfer.serving.sampling.layout import (
    EDIT_WIDTH,
    IN_OUTPUT,
    IN_PROMPT,
    Column,
    LogitEdits,
    Need,
    SamplingArrays,
    SlotState,
)
from jaxinfer.serving.sampling.sampler import sample
from jaxinfer.serving.sampling.slot_state import (
    count_sampled,
    count_tokens,
    set_edits,
    set_masks,
    with_slot_state,
)
from jaxinfer.serving.sampling.vocab_axis import VocabAxis
from jaxinfer.serving.slots.row_sampling import prepare_row
from jaxinfer.serving.slots.slot_updates import SlotUpdates
from tests.serving.requests.host_request import host_request

SLOTS, VOCAB = 5, 32
UPDATES = SlotUpdates(SLOTS, VOCAB)
draw_full = jax.jit(partial(sample, mode="full", max_logprobs=1))
set_edits_jitted, set_masks_jitted = jax.jit(set_edits), jax.jit(set_masks)
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@cache
def counting(num_devices: int):
    """`count_tokens` and `count_sampled` with the vocabulary split over a number of devices."""
    devices = jax.devices()[:num_devices]
    mesh = jax.make_mesh((num_devices,), ("tensor",), devices=devices, axis_types=(AxisType.Auto,))
    split, whole = PartitionSpec(None, "tensor"), PartitionSpec()

    def on_devices(step, num_inputs):
        specs = (split, *[whole] * num_inputs)
        shards = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
        return jax.jit(shards)

    known = on_devices(partial(count_tokens, axis="tensor"), 2)
    return known, on_devices(partial(count_sampled, axis=VocabAxis("tensor")), 3)


@given(st.data())
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("num_devices", [1, 4])
def test_counts_are_of_the_present_holders_tokens(num_devices: int, data: st.DataObject) -> None:
    known, sampled = counting(num_devices)
    counts, expected = jnp.zeros((SLOTS, VOCAB), jnp.int32), np.zeros((SLOTS, VOCAB), np.int32)
    for _ in range(data.draw(st.integers(1, 4))):
        slots = data.draw(st.sets(st.integers(0, SLOTS - 2), max_size=3))
        holders = []
        for slot in slots:
            request = host_request("r", data.draw(TOKENS))
            request.output_token_ids = data.draw(TOKENS)
            holders.append((slot, request))
            expected[slot] = 0
            expected[slot, request.prompt_token_ids] = IN_PROMPT
            np.add.at(expected[slot], request.output_token_ids, IN_OUTPUT)
        for update in UPDATES.counts(holders):
            counts = known(counts, *update)
        rows = data.draw(st.permutations(range(SLOTS)))[:3]
        tokens = np.array([data.draw(st.integers(0, VOCAB - 1)) for _ in rows], np.int32)
        scalars = np.zeros((3, len(Column)), np.int32)
        scalars[:, Column.NEEDS] = needs = np.array([Need.HISTORY, 0, Need.HISTORY | Need.EDITS])
        counts = sampled(counts, np.array(rows, np.int32), tokens, scalars)
        expected[rows, tokens] += np.where(needs & Need.HISTORY, IN_OUTPUT, 0).astype(np.int32)
        assert np.array_equal(counts, expected)


def test_a_long_history_is_counted_whole() -> None:
    known, _ = counting(1)
    request = host_request("r", [1, 2, 3] * 3000)
    request.output_token_ids = [3, 4] * 1000
    counts = jnp.full((SLOTS, VOCAB), 7, jnp.int32)  # of an earlier holder
    updates = list(UPDATES.counts([(2, request)]))
    for update in updates:
        counts = known(counts, *update)
    assert len(updates) > 1
    assert counts[2, :6].tolist() == [0, 1, 1, 1 + 2 * 1000, 2 * 1000, 0]
    assert (counts[np.array([0, 1, 3, 4])] == 7).all()


def test_edits_reach_their_slots_and_no_others() -> None:
    state = SlotState(
        jnp.zeros((SLOTS, VOCAB), jnp.int32),
        LogitEdits(
            jnp.zeros((SLOTS, EDIT_WIDTH), jnp.int32),
            jnp.zeros((SLOTS, EDIT_WIDTH)),
            jnp.zeros((SLOTS, EDIT_WIDTH), jnp.int32),
            jnp.zeros((SLOTS, 1), jnp.int32),
        ),
    )
    rows = [
        (3, SamplingParams(logit_bias={5: 2.0}), TokenEdits()),
        (1, SamplingParams(allowed_token_ids=[0, 31], bad_words=["x"]), TokenEdits(frozenset({9}))),
    ]
    edits = [
        (slot, prepare_row(params, seed=0, vocab_size=VOCAB, prompt_token_ids=[1]).edits, late)
        for slot, params, late in rows
    ]
    (update,) = jax.tree.map(jnp.asarray, list(UPDATES.edits(edits)))
    state = state._replace(edits=set_edits(state.edits, *update))
    slots = jnp.array([1, 3, 0])
    scalars = SamplingArrays(jnp.zeros((3, len(Column)), jnp.int32))
    arrays = with_slot_state(scalars, state, slots)
    assert arrays.edits.ids[:, :2].tolist() == [[9, -1], [5, -1], [0, 0]]
    assert arrays.edits.values[:2, 0].tolist() == [-np.inf, 2.0]
    assert arrays.edits.allowed[:, 0].tolist() == [1 - 2**31, -1, 0]
    assert not arrays.token_counts.any()


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_a_slot_s_mask_is_all_that_its_row_may_draw_from(data: st.DataObject) -> None:
    """Whatever the temperature, and whatever edits it has beside the mask."""
    masks = np.array([data.draw(st.integers(1, 2**VOCAB - 1)) for _ in range(SLOTS)], np.uint32)
    bits = np.zeros((8, 1), np.uint32)
    bits[:SLOTS, 0] = masks
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([0.0, 1.0, 5.0])),
        logit_bias={3: 50.0},
        structured_outputs={"regex": "a"},
    )
    row = prepare_row(params, seed=1, vocab_size=VOCAB, prompt_token_ids=[1])
    state = _state_of([(slot, row.edits, TokenEdits()) for slot in range(SLOTS)])
    (update,) = jax.tree.map(jnp.asarray, list(UPDATES.masks(range(SLOTS), bits.view(np.int32))))
    allowed = set_masks_jitted(state.edits.allowed, *update)
    state = state._replace(edits=state.edits._replace(allowed=allowed))
    scalars = np.repeat(row.scalars[None], SLOTS, axis=0)
    scalars[:, Column.POSITION] = data.draw(st.integers(0, 999))
    logits = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 9, (SLOTS, VOCAB))
    arrays = with_slot_state(SamplingArrays(jnp.asarray(scalars)), state, jnp.arange(SLOTS))
    output = draw_full(jnp.asarray(logits, jnp.float32), arrays)
    assert (output.status == OK).all()
    assert ((masks >> np.asarray(output.tokens).astype(np.uint32)) & 1).all()


def _state_of(edits) -> SlotState:
    shapes = [(EDIT_WIDTH, jnp.int32), (EDIT_WIDTH, jnp.float32), (EDIT_WIDTH, jnp.int32)]
    zeros = LogitEdits(*[jnp.zeros((SLOTS, w), d) for w, d in [*shapes, (1, jnp.int32)]])
    for update in jax.tree.map(jnp.asarray, list(UPDATES.edits(edits))):
        zeros = set_edits_jitted(zeros, *update)
    return SlotState(jnp.zeros((SLOTS, VOCAB), jnp.int32), zeros)


def test_masks_come_in_updates_of_two_sizes() -> None:
    masks = np.arange(256, dtype=np.int32).reshape(128, 2)  # wider than the vocabulary
    updates = list(SlotUpdates(100, VOCAB).masks(range(70), masks))
    assert [(len(u.slots), (u.slots < 100).sum()) for u in updates] == [(64, 64), (8, 6)]
    assert np.concatenate([u.allowed for u in updates])[:, 0].tolist() == list(range(0, 144, 2))
    assert all(np.shares_memory(u.allowed, masks) for u in updates)
