import functools

import jax
import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.constraints.constraint import TokenEdits
from jaxinfer.serving.programs.choose_buckets import choose_buckets
from jaxinfer.serving.programs.kinds.sampled_decode import SampledDecodeKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.requests.result import PROMPT_LOGPROBS
from jaxinfer.serving.runner.batch_builder import BatchBuilder
from jaxinfer.serving.runner.draft_texts import DraftTexts
from jaxinfer.serving.sampling.layout import Column, Need
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.request_sampling import request_sampling
from jaxinfer.serving.slots.step_masks import StepConstraints
from tests.call_count import calls_of
from tests.serving.requests.host_request import host_request

S, PADDING_SLOT = 8, 4


def test_every_array_of_a_batch_begins_where_gpu_kernels_can_read_it():
    for shape in (DecodeShape(3, 5), DecodeShape(66, 5, 35), PrefillShape(100, 7, 3)):
        packed = np.arange(shape.size, dtype=np.int32)
        for field in jax.tree.leaves(shape.split(packed)):
            assert int(field.flat[0]) * 4 % 256 == 0


def _builder(
    max_num_seqs=PADDING_SLOT,
    max_model_len=64,
    block_size=S,
    num_decode_steps=1,
    rows_in_item=0,
    tokenizer=None,
    vocab_size=100,
):
    buckets = choose_buckets(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        max_model_len=max_model_len,
        block_size=block_size,
        num_decode_steps=num_decode_steps,
        platform="gpu" if rows_in_item else "cpu",
        rows_in_item=rows_in_item,
    )
    prepare = functools.partial(
        request_sampling, vocab_size=vocab_size, eos_token_ids=[2], tokenizer=tokenizer
    )
    return BatchBuilder(
        buckets,
        draft_texts=DraftTexts(),
        max_num_seqs=max_num_seqs,
        block_size=block_size,
        vocab_size=vocab_size,
        prepare=prepare,
    )


def _request(slot, num_prompt, blocks, outputs=(), in_flight=0, **params):
    params = SamplingParams(**({"temperature": 0.0} | params))
    request = host_request(
        f"r{slot}", [(10 + i) % 100 for i in range(num_prompt)], params, seed=slot
    )
    request.slot = slot
    request.blocks.table = list(blocks)
    request.output_token_ids = list(outputs)
    request.num_in_flight_tokens = in_flight
    request.num_tokens = num_prompt + len(outputs) + in_flight
    return request


def _schedule(*rows, is_decode=False, num_steps=1):
    rows = [ScheduledRow(*row) for row in rows]
    num_tokens = sum(row.num_fed for row in rows)
    return Schedule(rows, is_decode, num_steps=num_steps, num_tokens=num_tokens)


def _sampling(batch):
    return batch.shape.split(batch.packed).sampling


def test_prefill_rows_are_packed_one_after_the_other():
    first = _request(2, 11, [5, 9])
    second = _request(0, 3, [7])
    batch = _builder().build(_schedule((first, 0, 11, 1), (second, 0, 3, 1)))
    fields = batch.shape.split(batch.packed)
    assert fields.token_ids[:14].tolist() == [*range(10, 21), 10, 11, 12]
    assert fields.positions[:14].tolist() == [*range(11), 0, 1, 2]
    first_slots = [*range(40, 48), 72, 73, 74]
    assert fields.slot_mapping[:14].tolist() == [*first_slots, 56, 57, 58]
    assert fields.cu_seqlens[:3].tolist() == [0, 11, 14]
    assert fields.context_lens[:2].tolist() == [11, 3]
    assert fields.slots[:2].tolist() == [2, 0]
    assert fields.block_tables[0, :2].tolist() == [5, 9]
    assert fields.block_tables[1, 0] == 7


def test_padding_belongs_to_no_request():
    batch = _builder().build(_schedule((_request(1, 3, [7]), 0, 3, 1)))
    fields = batch.shape.split(batch.packed)
    assert not fields.slot_mapping[3:].any()
    assert (fields.cu_seqlens[1:] == 3).all()
    assert not fields.context_lens[1:].any()
    assert (fields.slots[1:] == PADDING_SLOT).all()


def test_a_fork_reads_the_row_that_it_follows():
    leader, fork, other = (_request(slot, 11, [5, block]) for slot, block in enumerate([9, 8, 7]))
    rows = [(leader, 0, 11, 1), (fork, 11, 0, 1), (other, 8, 3, 1)]
    batch = _builder().build(_schedule(*rows))
    fields = batch.shape.split(batch.packed)
    assert fields.cu_seqlens[:4].tolist() == [0, 11, 11, 14]
    assert fields.context_lens[:3].tolist() == [11, 11, 11]
    assert fields.positions[:14].tolist() == [*range(11), 8, 9, 10]
    assert fields.slots[:3].tolist() == [0, 1, 2]
    assert fields.block_tables[:3, :2].tolist() == [[5, 9], [5, 9], [5, 7]]
    assert _sampling(batch).scalars[:3, Column.POSITION].tolist() == [11, 11, 11]


def test_a_chunk_that_does_not_sample_writes_to_the_padding_slot():
    request = _request(1, 20, [7, 8, 9], temperature=1.0)
    batch = _builder().build(_schedule((request, 8, 6, 0)))
    fields = batch.shape.split(batch.packed)
    assert fields.positions[:6].tolist() == [*range(8, 14)]
    assert fields.context_lens[0] == 14
    assert fields.slots[0] == PADDING_SLOT
    assert batch.mode == "temperature"


def test_a_token_still_in_flight_names_its_slot():
    request = _request(3, 4, [6], outputs=[50], in_flight=2)
    batch = _builder().build(_schedule((request, 5, 1, 1)))
    fields = batch.shape.split(batch.packed)
    assert fields.token_ids[0] == -1 - 3


def test_decode_uploads_lengths_slots_and_tables():
    rows = [
        (_request(3, 9, [6, 2], in_flight=1), 9, 1, 1),
        (_request(1, 2, [4]), 2, 1, 1),
    ]
    batch = _builder().build(_schedule(*rows, is_decode=True))
    fields = batch.shape.split(batch.packed)
    assert fields.context_lens.tolist()[:2] == [10, 3]
    assert fields.slots[:2].tolist() == [3, 1]
    assert (fields.slots[2:] == PADDING_SLOT).all()
    assert fields.block_tables[0, :2].tolist() == [6, 2]
    assert _sampling(batch).scalars[:2, Column.POSITION].tolist() == [10, 3]


def test_a_multi_step_says_how_many_tokens_each_row_keeps():
    rows = [
        (_request(3, 9, [6, 2], in_flight=1), 9, 1, 4),
        (_request(1, 2, [4]), 2, 1, 1),
    ]
    batch = _builder(num_decode_steps=4).build(_schedule(*rows, is_decode=True, num_steps=4))
    num_tokens = batch.shape.split(batch.packed).num_tokens
    assert num_tokens[:2].tolist() == [4, 1]
    assert not num_tokens[2:].any()


def test_rows_say_how_they_are_sampled_and_padding_is_greedy():
    drawn = _request(3, 9, [6, 2], in_flight=1, temperature=0.5, top_k=7)
    batch = _builder().build(_schedule((drawn, 9, 1, 1), is_decode=True))
    scalars = _sampling(batch).scalars
    temperatures = scalars[:, Column.TEMPERATURE].view(np.float32)
    assert temperatures[0] == 0.5
    assert not temperatures[1:].any()
    assert scalars[0, Column.TOP_K] == 7
    assert scalars[0, [Column.SEED_LOW, Column.SEED_HIGH]].tolist() == [3, 0]
    assert scalars[0, Column.POSITION] == 10


def test_special_rows_are_named_in_mode_mixed():
    builder = _builder(max_num_seqs=64)
    rows = [(_request(slot, 2, [slot + 1], temperature=1.0), 2, 1, 1) for slot in range(40)]
    for place in (3, 21):
        edits = {"temperature": 1.0, "logit_bias": {5: 1.0}}
        rows[place] = (_request(place, 2, [place + 1], **edits), 2, 1, 1)
    batch = builder.build(_schedule(*rows, is_decode=True))
    special = _sampling(batch).special.tolist()
    assert (batch.mode, batch.draw) == ("mixed", SamplerKey(batch.shape.rows, "mixed"))
    assert special == [3, 21] + [batch.shape.rows] * (len(special) - 2)


@pytest.mark.parametrize(
    ("params", "mode", "at_once"),
    [
        ({}, "temperature", True),
        ({"temperature": 1.0, "top_p": 0.5}, "truncate", True),
        ({"temperature": 1.0, "logprobs": 0}, "temperature", True),
        ({"logprobs": 2}, "full", False),
        ({"presence_penalty": 1.0}, "full", False),
    ],
    ids=str,
)
def test_a_decode_step_samples_at_once_where_its_slots_hold_nothing(params, mode, at_once):
    builder = _builder()
    row = (_request(0, 2, [1], **params), 2, 1, 1)
    batch = builder.build(_schedule(row, is_decode=True))
    sampler = SamplerKey(batch.shape.rows, mode)
    one, two = [SampledDecodeKey(batch.shape, mode)], [batch.shape, sampler]
    assert batch.programs == (one if at_once else two)
    assert {*batch.programs} <= {*all_programs(builder._buckets, swaps=False)}


def test_a_step_that_waits_for_tokens_before_it_samples_is_one_of_two_programs():
    schedule = _schedule((_request(0, 2, [1]), 2, 1, 1), is_decode=True)
    schedule.host_dependent = [0]
    builder = _builder()
    batch = builder.build(schedule)
    assert batch.draw == SamplerKey(batch.shape.rows, "temperature")
    assert batch.shape in builder._buckets.decode_shapes()


def test_tables_follow_growth_and_a_slots_next_holder():
    builder = _builder()
    request = _request(0, 8, [6], in_flight=1)
    builder.build(_schedule((request, 8, 1, 1), is_decode=True))
    request.blocks.table += [3, 5]
    batch = builder.build(_schedule((request, 16, 1, 1), is_decode=True))
    assert batch.shape.split(batch.packed).block_tables[0, :3].tolist() == [6, 3, 5]
    other = _request(0, 8, [1], temperature=0.5)
    batch = builder.build(_schedule((other, 7, 1, 1), is_decode=True))
    assert batch.shape.split(batch.packed).block_tables[0, 0] == 1
    assert batch.mode == "temperature"
    request.blocks.table = [9]
    request.blocks.num_admissions += 1
    batch = builder.build(_schedule((request, 7, 1, 1), is_decode=True))
    assert batch.shape.split(batch.packed).block_tables[0, 0] == 9


def test_the_row_that_needs_most_decides_the_mode():
    greedy = (_request(0, 2, [1]), 0, 2, 1)
    builder = _builder()
    for params, mode in (
        ({"temperature": 1.0}, "temperature"),
        ({"temperature": 1.0, "top_k": 5}, "truncate"),
        ({"logprobs": 2}, "full"),
    ):
        row = (_request(1, 2, [2], **params), 0, 2, 1)
        assert builder.build(_schedule(greedy, row)).mode == mode
        assert builder.build(_schedule(greedy)).mode == "temperature"


def test_min_tokens_costs_the_full_sampler_only_until_they_are_out():
    builder = _builder()
    request = _request(0, 2, [1], outputs=[7], min_tokens=2)
    assert builder.build(_schedule((request, 2, 1, 1), is_decode=True)).mode == "full"
    # The second token is in flight, but counted.
    assert builder.build(_schedule((request, 3, 1, 1), is_decode=True)).mode == "temperature"


@pytest.mark.parametrize(
    ("params", "mode"),
    [
        ({}, "temperature"),
        ({"temperature": 0.0}, "temperature"),
        ({"top_k": 3}, "truncate"),
        ({"logprobs": 0}, "full"),
        ({"logit_bias": {3: 1.0}}, "full"),
        ({"thinking_token_budget": 5}, "full"),
    ],
    ids=str,
)
def test_the_mask_of_a_grammar_asks_for_no_more_general_mode(params, mode):
    params = {"temperature": 1.0, "structured_outputs": {"regex": "a"}} | params
    request = _request(0, 2, [1], outputs=[7], **params)
    batch = _builder().build(_schedule((request, 2, 1, 1), is_decode=True))
    assert batch.mode == mode
    assert _sampling(batch).scalars[0, Column.NEEDS] == Need.EDITS


def test_a_slot_is_told_of_its_holder_once():
    builder = _builder()
    plain = (_request(0, 2, [1], logprobs=1), 0, 2, 1)
    penal = _request(1, 2, [2], outputs=[30], repetition_penalty=2.0, logit_bias={5: 1.0})
    row = (penal, 2, 1, 1)
    batch = builder.build(_schedule(plain, row))
    (edits,), (counts,) = batch.edits, batch.counts
    assert edits.slots[:2].tolist() == [1, PADDING_SLOT + 1]
    assert edits.edits.ids[0, :2].tolist() == [5, -1]
    assert counts.cleared[:2].tolist() == [1, PADDING_SLOT + 1]
    assert counts.tokens[:, :3].tolist() == [[1, 1, 1], [10, 11, 30], [0, 0, 1]]
    assert (counts.tokens[0, 3:] == PADDING_SLOT + 1).all()
    again = builder.build(_schedule(plain, row))
    assert not again.edits
    assert not again.counts
    penal.blocks.num_admissions += 1
    assert builder.build(_schedule(plain, row)).counts


def test_long_histories_of_many_rows_are_counted_in_parts():
    builder = _builder(max_num_seqs=64, max_model_len=4096)
    penalised = {"presence_penalty": 1.0}
    rows = [
        (_request(slot, 700 + slot, [slot + 1], **penalised), 699 + slot, 1, 1)
        for slot in range(10)
    ]
    counts = builder.build(_schedule(*rows, is_decode=True)).counts
    cleared = np.concatenate([update.cleared for update in counts])
    assert sorted(cleared[cleared < 64]) == [*range(10)]
    slots, ids, generated = np.concatenate([update.tokens for update in counts], axis=1)
    assert np.bincount(slots[slots < 64]).tolist() == [700 + slot for slot in range(10)]
    assert ids[slots == 3].tolist() == rows[3][0].prompt_token_ids
    assert not generated.any()


def test_slots_are_told_what_depends_on_tokens_read_since():
    builder = _builder()
    request = _request(2, 2, [1], outputs=[30], in_flight=1, logit_bias={5: 1.0})
    schedule = _schedule((request, 3, 1, 1), is_decode=True)
    (first,) = builder.build(schedule).edits
    assert first.edits.ids[0, :2].tolist() == [5, -1]

    def constrain(*edits):
        return builder.slot_edits.constrain(schedule, StepConstraints([(0, TokenEdits(*edits))]))

    assert constrain() == ([], [])
    (changed,), _ = constrain(frozenset([31]), 8)
    assert changed.slots[:2].tolist() == [2, PADDING_SLOT + 1]
    assert changed.edits.ids[0, :4].tolist() == [5, 31, 8, -1]
    assert constrain(frozenset([31]), 8) == ([], [])
    request.slot = None  # what was read has ended it
    assert constrain() == ([], [])


def test_targets_are_the_next_prompt_tokens_of_rows_that_want_scores():
    scored = _request(0, 10, [1, 2], prompt_logprobs=1)
    plain = _request(1, 2, [3])
    batch = _builder().build(_schedule((plain, 0, 2, 1), (scored, 4, 6, 1)))
    ((readout, targets),) = batch.readouts.items()
    assert readout.name == PROMPT_LOGPROBS
    assert targets[:8].tolist() == [0, 0, 15, 16, 17, 18, 19, 0]
    assert not _builder().build(_schedule((plain, 0, 2, 1))).readouts


def test_bad_words_need_a_tokenizer():
    request = _request(0, 2, [1], bad_words=["x"])
    with pytest.raises(ValueError, match="bad_words needs a tokenizer"):
        _builder().build(_schedule((request, 0, 2, 1)))


def test_a_request_without_a_slot_is_an_error():
    request = _request(0, 2, [1])
    request.slot = None
    with pytest.raises(ValueError, match="not running"):
        _builder().build(_schedule((request, 0, 2, 1)))


def test_building_a_decode_step_does_the_same_work_for_long_contexts():
    def calls(num_tokens):
        builder = _builder(max_num_seqs=64, max_model_len=8192, block_size=16)
        blocks = range(1, num_tokens // 16 + 2)
        requests = [_request(slot, num_tokens, blocks, in_flight=1) for slot in range(64)]
        rows = [(request, num_tokens, 1, 1) for request in requests]
        schedule = _schedule(*rows, is_decode=True)
        builder.build(schedule)
        return calls_of(lambda: builder.build(schedule))

    # Tables rebuilt from lists would call for each block.
    assert calls(4096) == calls(16)


def _decoding(rows, shared_blocks, **params):
    """A step whose rows all begin with the same blocks, and have 3 blocks each of their own."""
    common = list(range(1, 1 + shared_blocks))
    requests = []
    for slot in range(rows):
        own = 1 + shared_blocks + 3 * slot
        blocks = [*common, own, own + 1, own + 2]
        requests.append(_request(slot, (shared_blocks + 2) * S + 3, blocks, in_flight=1, **params))
    scheduled = [(request, request.num_prompt_tokens, 1, 1) for request in requests]
    return _schedule(*scheduled, is_decode=True)


def _sharing_builder():
    return _builder(max_num_seqs=256, max_model_len=1024, rows_in_item=32)


def test_keys_that_many_rows_share_are_read_once():
    batch = _sharing_builder().build(_decoding(60, shared_blocks=33))
    assert batch.shape.work_items
    fields = batch.shape.split(batch.packed)
    # Two windows of 32 rows, and whole tiles of 64 keys of the 264 that are shared.
    assert fields.shared.rows[:60, 0].tolist() == [256] * 60
    assert fields.shared.rows[:60, 3].tolist() == [*range(32), *range(28)]
    assert not fields.shared.rows[60:].any()
    assert fields.block_tables[59, :36].tolist() == [*range(1, 34), 211, 212, 213]


@pytest.mark.parametrize(("rows", "shared_blocks"), [(60, 0), (60, 16), (4, 40)])
def test_what_saves_little_takes_no_kernel_for_shared_keys(rows, shared_blocks):
    batch = _sharing_builder().build(_decoding(rows, shared_blocks))
    assert not batch.shape.work_items
    assert batch.shape.split(batch.packed).shared is None


def test_rows_that_share_too_little_for_a_larger_bucket_stay_in_theirs():
    builder = _sharing_builder()
    assert builder.build(_decoding(60, 24)).shape.work_items
    assert not builder.build(_decoding(70, 24)).shape.work_items  # of 128 rows, not of 256
    assert builder.build(_decoding(70, 90)).shape.rows == 256


@pytest.mark.parametrize(
    ("params", "mode"),
    [
        ({}, "temperature"),
        ({"temperature": 1.0, "top_k": 2}, "truncate"),
        ({"logprobs": 1}, "full"),
    ],
    ids=str,
)
def test_steps_that_share_keys_have_a_sampler_of_their_own(params, mode):
    builder = _sharing_builder()
    batch = builder.build(_decoding(60, 33, **params))
    assert batch.shape.work_items
    assert (batch.mode, batch.forward) == (mode, batch.shape)
    programs = all_programs(builder._buckets, swaps=False)
    assert {batch.shape, SamplerKey(batch.shape.rows, mode)} <= {*programs}


def test_a_multi_step_finds_its_program_and_room_for_its_last_token():
    builder = _builder(num_decode_steps=4)
    request = _request(0, 6, [3, 5], in_flight=1)
    batch = builder.build(_schedule((request, 6, 1, 4), is_decode=True, num_steps=4))
    key = SampledDecodeKey(batch.shape, batch.mode, 4)
    assert batch.draw is None
    assert key in all_programs(builder._buckets, swaps=False)
    assert batch.shape.split(batch.packed).block_tables[0, :2].tolist() == [3, 5]
