"""Drafts change when an answer comes, and nothing of the answer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.requests.draft_record import DraftRecord
from jaxinfer.serving.scheduler.speculation import NO_DRAFTS, DraftSize, Speculation
from jaxinfer.testing.fake_runner import next_token
from tests.serving.engine.test_engine import EOS, TOKENIZER, VOCAB, Setup

LETTERS = [TOKENIZER.encode(letter)[0] for letter in "abcd"]
DRAFTS = Speculation([DraftSize(1, 7), DraftSize(4, 3)])


def in_steps(num_steps):
    """The same, of which a launch has several."""
    return Speculation([size._replace(num_steps=num_steps) for size in DRAFTS.sizes])


def letters(context):
    """A toy model with four tokens, so that stop strings and stop tokens are met."""
    return LETTERS[next_token(context, len(LETTERS))]


class DraftingSetup(Setup):
    """Drafts are right first, then random."""

    def __init__(self, rng, *, most_good=6, speculation=DRAFTS, **options):
        super().__init__(speculation=speculation, **options)
        self.choose = options.get("token_map") or (lambda context: next_token(context, VOCAB))
        self.rng, self.most_good = rng, most_good
        self.runner.draft = self.draft
        step = self.engine.step
        self.engine.step = lambda: (step(), self.scheduler.check_invariants())

    def draft(self, context, most):
        known = list(context)
        for _ in range(self.rng.randint(0, self.most_good)):
            known.append(self.choose(known))
        known += [self.rng.choice(LETTERS) for _ in range(self.rng.randint(0, 2))]
        return known[len(context) :][:most]

    @property
    def drafted(self):
        """Rows of steps with drafts."""
        return [row for s in self.runner.launches if s.num_drafts for row in s.rows]


def outputs_of(setup, requests):
    """Everything that callers see of each request, however it was cut into outputs."""
    for i, (prompt, params) in enumerate(requests):
        setup.add(str(i), prompt, **params)
    last = {output.request_id: output for output in setup.run()}
    pool = setup.scheduler.pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    return {
        name: ([_seen_of(each) for each in output.outputs], output.prompt_logprobs)
        for name, output in last.items()
    }


def _seen_of(completion):
    fields = ["token_ids", "text", "finish_reason", "stop_reason", "logprobs", "cumulative_logprob"]
    return [getattr(completion, field) for field in fields]


prompts = st.builds(
    lambda shared, own: [LETTERS[0]] * shared + own,
    st.sampled_from([0, 8, 20, 1, 16]),
    st.lists(st.sampled_from(LETTERS), min_size=1, max_size=12),
)
parameters = st.fixed_dictionaries(
    {
        "max_tokens": st.sampled_from([30, 9, 1, 2, 70]),
        "stop": st.sampled_from([None, None, ["abc"], ["dd", "ca"]]),
        "stop_token_ids": st.sampled_from([None, None, None, [LETTERS[2]]]),
        "logprobs": st.sampled_from([None, None, 2]),
        "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        "n": st.sampled_from([1, 1, 3]),
        "bad_words": st.sampled_from([None, None, None, ["x"]]),
    }
)


@settings(max_examples=120, deadline=None)
@given(
    requests=st.lists(st.tuples(prompts, parameters), min_size=1, max_size=6),
    num_blocks=st.sampled_from([64, 14, 17]),
    block_size=st.sampled_from([8, 16]),
    budget=st.sampled_from([32, 8, 64]),
    num_host_blocks=st.sampled_from([0, 12]),
    ahead=st.sampled_from([1, 2]),
    most_good=st.sampled_from([6, 0, 20]),
    num_steps=st.sampled_from([1, 3]),
    seed=st.integers(0, 2**32),
)
def test_answers_are_those_of_an_engine_without_drafts(
    requests, num_blocks, block_size, most_good, num_steps, ahead, seed, **options
):
    options = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_model_len": 90,
        "tokenizer": TOKENIZER,
        "token_map": letters,
        "max_num_batched_tokens": options["budget"],
        "preemption_mode": "swap" if options["num_host_blocks"] else "recompute",
        "num_host_blocks": options["num_host_blocks"],
        "ahead": ahead,
    }
    plain = outputs_of(Setup(**options), requests)
    drafting = DraftingSetup(
        random.Random(seed), most_good=most_good, speculation=in_steps(num_steps), **options
    )
    assert outputs_of(drafting, requests) == plain
    read = [schedule for schedule in drafting.runner.launches if schedule.fed]
    assert read
    for schedule in read:  # idle steps are left out
        assert len(schedule.fed) <= schedule.num_steps
        assert min(schedule.fed) > 0


@pytest.mark.parametrize(("num_steps", "most_launches"), [(1, 30), (2, 18), (4, 20)])
def test_good_drafts_save_steps(num_steps, most_launches):
    drafting = DraftingSetup(random.Random(0), most_good=6, speculation=in_steps(num_steps))
    plain = Setup()
    for setup in (plain, drafting):
        setup.add("a", [1, 2, 3], max_tokens=60)
    assert drafting.answers() == plain.answers()
    assert plain.runner.num_launches >= 60
    assert drafting.runner.num_launches < most_launches


def test_steps_with_drafts_run_ahead_of_their_reading():
    setup = DraftingSetup(random.Random(0), most_good=6, ahead=2)
    setup.add("a", [1, 2, 3], max_tokens=60)
    unread = []
    while setup.engine.has_unfinished:
        setup.engine.step()
        setup.engine.take_outputs()
        unread.append(setup.runner.unread)
    assert unread.count(2) > len(unread) / 2
    assert len(unread) < 30


def test_a_request_whose_drafts_are_never_right_stops_drafting_and_tries_again():
    setup = DraftingSetup(random.Random(0), most_good=0, speculation=Speculation([DraftSize(1, 3)]))
    setup.runner.draft = lambda context, most: [EOS] * most
    setup.add("a", [1, 2, 3], max_tokens=120)
    setup.run()
    has_drafts = [schedule.num_drafts > 0 for schedule in setup.runner.launches]
    assert sum(has_drafts) < 45
    assert any(has_drafts[40:])


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_request_that_can_not_draft_sits_out_alone(ahead):
    setup = DraftingSetup(random.Random(0), most_good=6, ahead=ahead)
    setup.add("plain", [4, 5, 6], max_tokens=30, presence_penalty=1.0)
    setup.add("drafts", [1, 2, 3], max_tokens=30)
    first = setup.scheduler.unfinished()[0]
    setup.run()
    assert all(row.request is not first for row in setup.drafted)
    assert len(setup.drafted) >= 5
    # Beside it, every other step is one with drafts.
    rows_of_first = [row for s in setup.runner.launches for row in s.rows if row.request is first]
    assert len(rows_of_first) == 30


def test_a_prompt_whose_last_chunk_is_one_token_does_not_wait_for_the_drafts_of_others():
    setup = DraftingSetup(random.Random(0), max_num_batched_tokens=8)
    setup.add("drafts", [1, 2, 3], max_tokens=100)
    for _ in range(3):
        setup.engine.step()
    setup.add("late", range(9, 18), max_tokens=2)  # eight tokens, and one
    ended = [output.request_id for output in setup.run()]
    assert ended == ["late", "drafts"]


def test_where_most_requests_can_not_draft_none_does():
    setup = DraftingSetup(random.Random(0))
    for i in range(3):
        setup.add(str(i), [4, 5, i], max_tokens=20, presence_penalty=1.0)
    setup.add("could", [1, 2, 3], max_tokens=20)
    setup.run()
    assert not setup.drafted


@pytest.mark.parametrize("num_plain", [0, 7])
def test_where_no_step_has_drafts_steps_run_ahead_as_without(num_plain):
    """Too many could draft, or others are the more."""

    def unread(setup):
        for i in range(8):
            penalty = {"presence_penalty": 1.0} if i < num_plain else {}
            setup.add(str(i), [4, 5, i], max_tokens=20, **penalty)
        found = []
        while setup.engine.has_unfinished:
            setup.engine.step()
            setup.engine.take_outputs()
            found.append(setup.runner.unread)
        return found

    drafting = DraftingSetup(random.Random(0), ahead=2)
    assert unread(drafting) == unread(Setup(ahead=2))
    assert not drafting.drafted


def test_blocks_of_a_preempted_request_are_copied_before_drafts_take_them():
    options = {"num_blocks": 8, "preemption_mode": "swap", "num_host_blocks": 12}
    setup, plain = DraftingSetup(random.Random(0), **options), Setup(**options)
    for each in (setup, plain):
        each.add("a", [1, 2, 3], max_tokens=30)
        each.add("b", [4, 5, 6], max_tokens=30)
        each.engine.step()
        each.engine.step()
    plan, kinds = setup.scheduler.schedule, []

    def checked(*args):
        schedule = plan(*args)
        if schedule is not None:
            assert not setup.scheduler.swap_space.copies_out
            kinds.append((schedule.num_drafts > 0, bool(schedule.swap_out)))
        return schedule

    setup.scheduler.schedule = checked
    setup.scheduler.preempt(1)
    assert setup.answers() == plain.answers()
    assert (True, True) in kinds


def test_an_end_of_sequence_among_the_accepted_tokens_ends_the_request():
    def choose(context):
        return EOS if len(context) == 8 else 3

    setup = DraftingSetup(random.Random(0), token_map=choose)
    setup.runner.draft = lambda context, most: [
        choose(range(len(context) + i)) for i in range(most)
    ]
    setup.add("a", [1, 2, 3], max_tokens=50, ignore_eos=False)
    (output,) = setup.run()
    assert output.outputs[0].token_ids == [3, 3, 3, 3, 3, EOS]
    assert output.outputs[0].finish_reason == "stop"
    assert output.metrics.num_accepted_tokens == 5  # not what was accepted behind the end
    assert setup.runner.num_launches <= 3


@pytest.mark.parametrize("num_steps", [1, 4])
def test_steps_behind_the_end_of_an_answer_are_steps_and_their_drafts_do_not_count(num_steps):
    def choose(context):
        return EOS if len(context) == 6 else 3

    speculation = Speculation([DraftSize(1, 1, num_steps)])
    setup = DraftingSetup(random.Random(0), token_map=choose, speculation=speculation)
    setup.runner.draft = lambda context, most: [choose(range(len(context)))][:most]
    setup.add("a", [1, 2, 3], max_tokens=50, ignore_eos=False)
    (output,) = setup.run()
    assert output.outputs[0].token_ids == [3, 3, 3, EOS]
    # A token of the prompt's step, then two of a step each, of which the second ends the answer.
    counts = setup.engine.counts()
    assert (counts.drafts.num_rows, counts.drafts.num_drafted) == (2, 2)
    assert (output.metrics.num_draft_tokens, output.metrics.num_accepted_tokens) == (2, 2)
    launches = [s for s in setup.runner.launches if s.num_drafts and s.fed]  # were read
    assert counts.steps.decode_steps == num_steps * len(launches)
    assert counts.steps.decode_tokens == 2 * counts.steps.decode_steps


def test_idle_steps_do_not_count():
    """All drafts are right, so that two of four steps give all that there is to gain."""
    setup = DraftingSetup(random.Random(0), speculation=Speculation([DraftSize(1, 3, 4)]))
    setup.runner.draft = lambda context, most: _right(context, setup.choose, most)
    setup.add("a", [1, 2, 3], max_tokens=9)
    setup.run()
    (launch,) = (s for s in setup.runner.launches if s.num_drafts)
    assert (launch.num_steps, list(launch.fed)) == (4, [4, 4])
    steps = setup.engine.counts().steps
    assert (steps.decode_steps, steps.decode_tokens) == (2, 8)
    assert sum(steps.step_tokens) == 1 + 2


@pytest.mark.parametrize("gain", [0.0, 0.06, 0.14])
def test_rows_whose_drafts_are_seldom_right_take_no_more_launches_than_without(gain):
    """Of few rows of a small model a launch takes as long however many steps it has."""
    launches = []
    for speculation in (NO_DRAFTS, Speculation([DraftSize(4, 7, 8)])):
        setup = DraftingSetup(
            random.Random(0),
            speculation=speculation,
            num_decode_steps=8,
            num_blocks=400,
            max_model_len=512,
        )
        setup.runner.draft = lambda context, most, s=setup: (
            _right(context, s.choose, min(most, 3)) if s.rng.random() < gain / 3 else [EOS][:most]
        )
        for i in range(4):
            setup.add(str(i), [1 + i, 2, 3], max_tokens=256)
        setup.run()
        launches.append(setup.runner.num_launches)
    assert launches[1] <= 1.02 * launches[0]


def test_a_row_counts_for_the_tokens_that_it_fed_in_each_step():
    setup = DraftingSetup(random.Random(0), speculation=Speculation([DraftSize(4, 1, 4)]))
    setup.runner.draft = lambda context, most: [EOS][:most]  # never right
    setup.add("a", [1, 2, 3], max_tokens=9)
    setup.add("b", [4, 2, 3], max_tokens=4)
    setup.run()
    (first, *_) = (s for s in setup.runner.launches if s.num_drafts)
    # Both feed a token and a draft, until one more token is all that the second may gain.
    assert list(first.fed) == [4, 4, 3, 2]


@pytest.mark.parametrize("fails", ["fail_launches", "fail_fetches"])
def test_a_step_with_drafts_that_raises_costs_no_token(fails):
    setup, plain = DraftingSetup(random.Random(1)), Setup()
    for i in range(3):
        for each in (setup, plain):
            each.add(str(i), [i, 2, 3], max_tokens=30)
    getattr(setup.runner, fails).update({2, 3, 6})
    assert setup.answers() == plain.answers()
    assert setup.runner.num_resets >= 2


def test_a_bad_logit_after_accepted_tokens_ends_the_request_with_an_error():
    setup = DraftingSetup(random.Random(2))
    setup.add("a", [1, 2, 3], max_tokens=30)
    setup.add("b", [4, 2, 3], max_tokens=30)
    setup.engine.step()
    setup.runner.poisoned.add(setup.scheduler.unfinished()[0].request_id)
    outputs = {output.request_id: output for output in setup.run()}
    assert outputs["a"].outputs[0].finish_reason == "error"
    assert len(outputs["b"].outputs[0].token_ids) == 30


def test_what_was_drafted_and_accepted_is_counted():
    setup = DraftingSetup(random.Random(0), speculation=Speculation([DraftSize(1, 3)]))
    setup.runner.draft = lambda context, most: [
        *_right(context, setup.choose, min(most, 2)),
        *[EOS] * (most - 2),
    ]
    setup.add("a", [1, 2, 3], max_tokens=31)
    (request,) = setup.scheduler.unfinished()
    setup.run()
    counts = setup.engine.counts().drafts
    assert counts.num_rows == 10  # at the end there is room for fewer drafts, and then for none
    assert counts.num_accepted_at == [10, 9]
    assert counts.num_drafted == 9 * 3 + 1
    assert (request.history.num_draft_tokens, request.history.num_accepted_tokens) == (28, 19)
    assert counts.plus(counts).num_accepted_at == [20, 18]


def _right(context, choose, count):
    known = list(context)
    for _ in range(count):
        known.append(choose(known))
    return known[len(context) :]


def device_steps(setup):
    return sum(schedule.num_steps for schedule in setup.runner.launches)


def test_several_steps_a_launch_are_for_rows_that_can_use_them():
    """Not where blocks are short, others share the device, or answers are about to end."""
    short = {"max_model_len": 64, "block_size": 8, "num_blocks": 9}
    cases = [
        (short, [{"max_tokens": 50}] * 3),
        ({}, [{"max_tokens": 120}, {"max_tokens": 40, "presence_penalty": 0.5}]),
        ({}, [{"max_tokens": 5}] * 4),
    ]
    for options, requests in cases:
        counts = []
        for num_steps in (1, 4):
            setup = DraftingSetup(
                random.Random(0), most_good=6, speculation=in_steps(num_steps), **options
            )
            for i, params in enumerate(requests):
                setup.add(str(i), [1 + i, 2, 3], **params)
            setup.run()
            counts.append(device_steps(setup))
        assert counts[1] <= 1.35 * counts[0], (options, counts)


@pytest.mark.parametrize("num_resting", [2, 6])
def test_rows_that_want_drafts_have_some_and_those_that_rest_take_part_if_they_fit(num_resting):
    setup = DraftingSetup(
        random.Random(0), speculation=Speculation([DraftSize(8, 3)]), max_num_seqs=16
    )
    for i in range(6 + num_resting):
        setup.add(str(i), [1 + i, 2], max_tokens=60)
    for request in list(setup.scheduler.unfinished())[6:]:
        request.drafts = DraftRecord(_resumes_at=1000)
    setup.run()
    sizes = [len(s.rows) for s in setup.runner.launches if s.num_drafts]
    assert max(sizes) == (8 if num_resting == 2 else 6)
