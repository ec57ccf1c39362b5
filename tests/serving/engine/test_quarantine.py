"""A request that makes steps raise ends alone; other requests are not affected."""

import dataclasses
import json
import random
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.serving.engine.quarantine import Quarantine
from jaxinfer.testing.fake_runner import continuation
from tests.serving.engine.test_engine import VOCAB, Setup


class Poisoned(Setup):
    """A device that raises whenever one of these requests is in a step that reaches a position."""

    def __init__(self, poison, **options):
        super().__init__(**options)
        self.poison = poison
        launch = self.runner.launch

        def raising(schedule):
            for row in schedule.rows:
                end = row.start + row.num_fed + schedule.num_steps - 1
                if end >= self.poison.get(row.request.request_id.split("/")[0], 10**9):
                    self.runner._pages.clear()
                    raise RuntimeError(f"{row.request.request_id} is poison")
            return launch(schedule)

        self.runner.launch = raising


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 4]),
    st.sampled_from([8, 32]),
    st.integers(0, 3),
    st.sampled_from([1, 2]),
)
def test_only_the_poisonous_end_whoever_they_run_with(seed, multi_step, budget, num_poison, ahead):
    rng = random.Random(seed)
    prompts = {str(i): [i] * rng.randrange(1, 25) for i in range(rng.randrange(4, 12))}
    poison = {str(i): rng.randrange(1, 50) for i in rng.sample(range(len(prompts)), num_poison)}
    setup = Poisoned(
        poison,
        ahead=ahead,
        num_decode_steps=multi_step,
        max_num_batched_tokens=budget,
        num_blocks=200,
    )
    for name, prompt in prompts.items():
        setup.add(name, prompt, max_tokens=24)
        for _ in range(rng.randrange(3)):
            setup.engine.step()
    outputs = {output.request_id: output for output in setup.run()}
    for name, prompt in prompts.items():
        (answer,) = outputs[name].outputs
        expected = continuation(prompt, 24, VOCAB)
        if name in poison and poison[name] < len(prompt) + 24:
            assert answer.finish_reason == "error"
            assert outputs[name].error == f"its step failed twice: {name}/0 is poison"
            assert answer.token_ids == expected[: len(answer.token_ids)]
            assert poison[name] - len(prompt) - len(answer.token_ids) < 2 * multi_step + 1
        else:
            assert answer.token_ids == expected
            assert outputs[name].error is None


def test_where_steps_raise_is_in_the_output_and_once_in_the_log(caplog):
    setup = Poisoned({"2": 5}, max_num_seqs=4)
    for i in range(4):
        setup.add(str(i), [i], max_tokens=8)
    outputs = {output.request_id: output for output in setup.run()}
    assert [outputs[str(i)].cause for i in (0, 1, 3)] == [None] * 3
    cause = outputs["2"].cause
    assert isinstance(cause, RuntimeError)
    frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
    assert frames[-1].f_code.co_name == "raising"
    assert not frames[-1].f_locals  # no array of the step is kept by whoever keeps the output
    told = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1 < len(caplog.records)
    assert json.dumps(dataclasses.asdict(outputs["2"]))


def test_the_poisonous_among_many_is_found_in_few_steps_that_raise():
    setup = Poisoned({"70": 5}, max_num_seqs=128, max_num_batched_tokens=512, num_blocks=800)
    for i in range(100):
        setup.add(str(i), [i % VOCAB], max_tokens=10)
    outputs = {output.request_id: output for output in setup.run()}
    assert [name for name, output in outputs.items() if output.error] == ["70"]
    assert setup.runner.num_resets <= 2 + 7 + 1  # twice together, then half and half, twice alone


def test_what_comes_while_others_are_set_apart_runs_after_them():
    setup = Poisoned({"b": 6}, max_num_seqs=4)
    for name in "abc":
        setup.add(name, [1], max_tokens=12)
    while not setup.engine.recovery.quarantine._groups:
        setup.engine.step()
    setup.add("late", [9], max_tokens=12)
    outputs = {output.request_id: output for output in setup.run()}
    assert {name: bool(output.error) for name, output in outputs.items()} == {
        "a": False,
        "b": True,
        "c": False,
        "late": False,
    }


def test_aborting_all_that_are_set_apart_lets_the_others_run():
    setup = Poisoned({"b": 6}, max_num_seqs=4)
    for name in "abc":
        setup.add(name, [1], max_tokens=12)
    while not setup.engine.recovery.quarantine._groups:
        setup.engine.step()
    setup.add("late", [9], max_tokens=12)
    for name in "abc":
        setup.engine.abort(name)
    assert setup.answers()["late"] == continuation([9], 12, VOCAB)


def test_failures_are_forgotten_when_the_step_has_been_passed():
    setup = Setup()
    quarantine = Quarantine(setup.scheduler)
    setup.add("a", [1, 2, 3], max_tokens=9)
    setup.engine.step()
    (request,) = setup.scheduler.unfinished()
    assert quarantine.blame([request]) == []
    setup.engine.step()
    setup.engine.step()
    quarantine.settle()
    assert quarantine.blame([request]) == []
    assert quarantine.blame([request]) == [request]


@pytest.mark.parametrize("where", ["schedule", "launch", "fetch"])
def test_when_every_step_raises_every_request_ends_and_none_waits(where):
    setup = Setup()

    def broken(*_):
        raise RuntimeError("broken for good")

    setattr(setup.scheduler if where == "schedule" else setup.runner, where, broken)
    for i in range(5):
        setup.add(str(i), [i])
    assert [output.error for output in setup.run()] == [
        "its step failed twice: broken for good"
    ] * 5
