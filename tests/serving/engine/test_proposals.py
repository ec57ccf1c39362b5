"""Proposed tokens change when an answer comes, and nothing of the answer."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler.proposals import propose
from jaxinfer.testing.fake_runner import next_token
from tests.serving.engine.test_engine import EOS, TOKENIZER, VOCAB, Setup

LETTERS = [TOKENIZER.encode(letter)[0] for letter in "abcd"]


def letters(context):
    """A toy model with four tokens, so that stop strings and stop tokens are met."""
    return LETTERS[next_token(context, len(LETTERS))]


class ProposingSetup(Setup):
    """Between steps, proposes for some requests: right tokens first, then random ones."""

    def __init__(self, rng, *, most_good=6, share=0.7, **options):
        super().__init__(**options)
        self.choose = options.get("token_map") or (lambda context: next_token(context, VOCAB))
        self.rng, self.most_good, self.share = rng, most_good, share
        step = self.engine.step
        self.engine.step = lambda: (self.propose(), step(), self.scheduler.check_invariants())

    def propose(self):
        for request in self.scheduler.unfinished():
            if request.constraint is None and self.rng.random() < self.share:
                propose(request, self.guess(request))

    def guess(self, request: Request) -> list[int]:
        known = request.prompt_token_ids + request.output_token_ids
        num_known = len(known)
        for _ in range(self.rng.randint(0, self.most_good)):
            known.append(self.choose(known))
        known += [self.rng.choice(LETTERS) for _ in range(self.rng.randint(0, 2))]
        return known[num_known:]

    @property
    def verified(self):
        """Rows with proposals that were launched."""
        return [row for s in self.runner.launches for row in s.rows if row.proposed_token_ids]


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
        "logprobs": st.sampled_from([None, 2]),
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
    most_good=st.sampled_from([6, 0, 20]),
    share=st.sampled_from([1.0, 0.3, 0.05]),
    seed=st.integers(0, 2**32),
)
def test_answers_are_those_of_an_engine_without_proposals(
    requests, num_blocks, block_size, most_good, share, seed, **options
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
    }
    plain = outputs_of(Setup(**options), requests)
    proposing = ProposingSetup(random.Random(seed), most_good=most_good, share=share, **options)
    assert outputs_of(proposing, requests) == plain


def test_good_proposals_save_steps():
    prompt, num_tokens = [1, 2, 3], 60
    plain, proposing = Setup(), ProposingSetup(random.Random(0), most_good=6, share=1.0)
    for setup in (plain, proposing):
        setup.add("a", prompt, max_tokens=num_tokens)
    assert proposing.answers() == plain.answers()
    assert proposing.verified
    assert proposing.runner.num_launches < plain.runner.num_launches / 2


def test_a_request_that_verifies_holds_up_no_other():
    setup = ProposingSetup(random.Random(0))
    setup.add("plain", [4, 5, 6], max_tokens=40)
    setup.add("verified", [1, 2, 3], max_tokens=40)
    first = setup.scheduler.unfinished()[0]
    setup.propose = lambda: [
        propose(r, setup.guess(r)) for r in setup.scheduler.unfinished() if r is not first
    ]
    setup.run()
    rows_of_first = [row for s in setup.runner.launches for row in s.rows if row.request is first]
    # One launch a token from the first step on, and a surplus one at most.
    assert len(rows_of_first) == 40
    assert all(row.request is not first for row in setup.verified)
    assert len(setup.verified) >= 5


def test_an_end_of_sequence_among_the_accepted_tokens_ends_the_request():
    def choose(context):
        return EOS if len(context) == 8 else 3

    setup = Setup(token_map=choose)
    setup.add("a", [1, 2, 3], max_tokens=50, ignore_eos=False)
    (request,) = setup.scheduler.unfinished()
    propose(request, [3] * 5 + [EOS, 3, 3])
    (output,) = setup.run()
    assert output.outputs[0].token_ids == [3, 3, 3, 3, 3, EOS]
    assert output.outputs[0].finish_reason == "stop"
    assert setup.runner.num_launches == 1


@pytest.mark.parametrize("fails", ["fail_launches", "fail_fetches"])
def test_a_step_with_proposals_that_raises_costs_no_token(fails):
    setup = ProposingSetup(random.Random(1), share=1.0)
    for i in range(3):
        setup.add(str(i), [i, 2, 3], max_tokens=30)
    getattr(setup.runner, fails).update({2, 3, 6})
    plain = Setup()
    for i in range(3):
        plain.add(str(i), [i, 2, 3], max_tokens=30)
    assert setup.answers() == plain.answers()
    assert setup.runner.num_resets >= 2


def test_a_bad_logit_after_accepted_tokens_ends_the_request_with_an_error():
    setup = ProposingSetup(random.Random(2), share=1.0)
    setup.add("a", [1, 2, 3], max_tokens=30)
    setup.add("b", [4, 2, 3], max_tokens=30)
    setup.engine.step()
    setup.runner.poisoned.add(setup.scheduler.unfinished()[0].request_id)
    outputs = {output.request_id: output for output in setup.run()}
    assert outputs["a"].outputs[0].finish_reason == "error"
    assert len(outputs["b"].outputs[0].token_ids) == 30
