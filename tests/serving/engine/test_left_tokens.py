"""A request that wants its answer at the end alone gets the tokens that others are shown singly."""

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer import SamplingParams
from jaxinfer.sampling_fields import RequestOutputKind
from jaxinfer.serving.engine.open_requests import OpenRequests
from tests.serving.engine.test_engine import TOKENIZER, Setup, new_request
from tests.serving.small_llm import PROMPTS, small_llm


def _facts(output):
    answer = output.outputs[0]
    metrics = output.metrics
    return (
        (answer.token_ids, answer.text, answer.finish_reason, answer.stop_reason),
        (answer.weight_version, output.error, metrics.num_generated_tokens),
    )


def _run(kind, seed, num_steps, ahead):
    """Requests of one kind through weight swaps, aborts, preemption and a fault; last outputs."""
    rng = random.Random(seed)
    setup = Setup(num_blocks=14, tokenizer=TOKENIZER, num_decode_steps=num_steps, ahead=ahead)
    last = {}
    for i in range(40):
        if i < 12 and rng.random() < 0.8:
            ids = [rng.randrange(90) for _ in range(rng.randrange(1, 20))]
            stop = ["e", "th"] if rng.random() < 0.2 else []
            params = SamplingParams(
                temperature=0.0, max_tokens=rng.randrange(1, 25), stop=stop, ignore_eos=True
            )
            keep = functools.partial(last.__setitem__, f"r{i}")
            setup.engine.add(new_request(ids, params, key=f"r{i}", kind=kind, sink=keep))
        if (chance := rng.random()) < 0.06:
            setup.engine.lifecycle.update_params({})
        elif chance < 0.12:
            setup.engine.abort(f"r{rng.randrange(12)}")
        elif chance < 0.16:
            setup.runner.fail_fetches.add(setup.runner.num_launches)
        elif chance < 0.2:
            setup.runner.poisoned.add(f"r{rng.randrange(12)}/0")
        setup.engine.step()
    setup.run()
    return last, setup.engine.counts()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_steps=st.sampled_from([1, 4]),
    ahead=st.sampled_from([1, 2]),
)
def test_final_outputs_are_the_last_of_cumulative_ones(seed, num_steps, ahead):
    final, counts = _run("final", seed, num_steps, ahead)
    shown, others = _run("cumulative", seed, num_steps, ahead)
    assert {name: _facts(output) for name, output in final.items()} == {
        name: _facts(output) for name, output in shown.items()
    }
    assert counts.generation_tokens == others.generation_tokens


def test_a_plain_row_of_a_final_request_is_reported_twice(monkeypatch):
    """With its first token and when it ends; the rest of its steps cost nothing here."""
    reported = []
    record = OpenRequests.record

    def recorded(self, step):
        reported.append([update.request.request_id for update in step.updates])
        record(self, step)

    monkeypatch.setattr(OpenRequests, "record", recorded)
    setup = Setup()
    setup.add("final", [1, 2, 3], max_tokens=9)
    setup.add("shown", [4, 5], "cumulative", max_tokens=9)
    setup.run()
    names = [name for step in reported for name in step]
    assert (names.count("final/0"), names.count("shown/0")) == (2, 9)


def test_an_aborted_request_tells_when_its_latest_token_was_read():
    now = iter(range(1000))
    setup = Setup()
    setup.engine._requests._clock = lambda: float(next(now))
    outputs = []
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    request = new_request([1, 2, 3], params, key="a", kind="final", sink=outputs.append)
    setup.engine.add(request)
    for _ in range(8):
        setup.engine.step()
    read = setup.engine._requests._last_read
    setup.engine.abort("a")
    (output,) = outputs
    assert len(output.outputs[0].token_ids) == 7
    metrics = output.metrics
    assert (metrics.last_token_time, metrics.num_generated_tokens) == (read, 7)
    assert metrics.first_token_time < read <= metrics.finished_time


@pytest.mark.parametrize("num_decode_steps", [1, 4])
def test_log_probabilities_are_those_that_a_stream_gets(num_decode_steps):
    """Chosen tokens' alone, which final requests leave to the scheduler, with a stop among them."""
    params = [
        SamplingParams(temperature=1.0, max_tokens=20, seed=i, logprobs=0, ignore_eos=i % 2 == 0)
        for i in range(3)
    ]
    params[1] = params[1].clone(stop_token_ids=list(range(40)))
    with small_llm(num_decode_steps=num_decode_steps) as llm:
        final = llm.generate(PROMPTS, params, use_tqdm=False)
        for i, (prompt, each) in enumerate(zip(PROMPTS, params, strict=True)):
            shown = each.clone(output_kind=RequestOutputKind.CUMULATIVE)
            llm.add_request(str(i), {"prompt_token_ids": prompt}, shown)
        last = {}
        while llm.has_unfinished_requests():
            last |= {output.request_id: output for output in llm.step()}
    for i, output in enumerate(final):
        ours, theirs = output.outputs[0], last[str(i)].outputs[0]
        assert ours.token_ids == theirs.token_ids
        assert len(ours.logprobs) == len(ours.token_ids)
        assert ours.logprobs.values == theirs.logprobs.values
        assert ours.cumulative_logprob == pytest.approx(theirs.cumulative_logprob)
