"""Answers drawn freely and checked, on a toy device: as if each token were drawn alone."""

import random

import numpy as np
import pytest

from jaxinfer import StructuredOutputsParams
from jaxinfer.serving.guided import free_runs
from jaxinfer.serving.guided.free_runs import FreeRuns
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler import step_planner
from tests.serving.engine.fake_runner import next_token
from tests.serving.engine.test_engine import Setup
from tests.serving.engine.test_grammars import FIXED_KEYS, run, tokens_of
from tests.serving.engine.test_grammars_after_thinking import TOKENS
from tests.serving.guided.grammars import (
    SCHEMAS,
    allowed_ids,
    bundled_tokenizer,
    shared_compiler,
)

TOKENIZER = bundled_tokenizer()
ENDS = TOKENIZER.eos_token_ids
TEXT = {"type": "string", "maxLength": 60}
LONG_TEXT = {"type": "string", "minLength": 400}
"""Whose end is refused, behind which nearly all tokens may come."""
SHARE_OF_A_TEXT = 0.8
"""Less of this small vocabulary may go on with a text than of larger ones."""
DIGITS = {"type": "string", "pattern": "^[0-9]{40}$"}
LETTERS = TOKENIZER.encode(' the quick brown fox jumps over a lazy dog"', add_special_tokens=False)


def wordy(context):
    """The toy model's choice where it is free: letters and, now and then, what ends a string."""
    return LETTERS[next_token(context, len(LETTERS))]


def expected(prompt, schema, max_tokens, choose, *, may_think=False):
    """The answer that is drawn token by token, each after all before it are known.

    With `may_think` its first token may also open the thinking, after which nothing is expected.
    """
    matcher = shared_compiler().get(StructuredOutputsParams(json=schema)).matcher()
    runs, tokens = FreeRuns(enabled=True), []
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in ENDS):
        context, number = prompt + tokens, len(tokens)
        matcher.follow(tokens)
        if may_think and number == 0:
            ids = sorted([*allowed_ids(matcher), TOKENS.open])
            tokens.append(ids[next_token(context, len(ids))])
            if tokens == [TOKENS.open]:
                return tokens
            continue
        if number < runs.together and len(forced := matcher.forced_tokens()) > 1:
            tokens += forced[: max_tokens - number]
            continue
        if number >= runs.first:
            token = choose(context)
            if matcher.state.validate_tokens([token]) or may_end(matcher, token):
                tokens.append(token)
                continue
            runs.note_refusal(number)
            continue
        ids = allowed_ids(matcher)
        bits = np.zeros(matcher.num_words * 32, np.uint8)
        bits[ids] = 1
        runs.note_mask(number, np.packbits(bits, bitorder="little").view(np.int32))
        tokens.append(int(ids[next_token(context, len(ids))]))
    return tokens


def may_end(matcher, token):
    return matcher.may_end and token in ENDS


def free_setup(**options):
    defaults = {"tokenizer": TOKENIZER, "grammars": shared_compiler(), "eos_token_ids": ENDS}
    return Setup(**(defaults | {"token_map": wordy} | options))


def add(setup, name, prompt, schema, **params):
    setup.add(name, prompt, **{"max_tokens": 90, "structured_outputs": {"json": schema}} | params)


def answers(setup):
    return {name: output.outputs[0].token_ids for name, output in run(setup).items()}


def test_a_long_text_takes_part_in_multi_step_decodes():
    setup, prompt = free_setup(num_decode_steps=4), [1, 2]
    add(setup, "a", prompt, TEXT)
    add(setup, "b", [3], TEXT)
    tokens = answers(setup)
    assert tokens["a"] == expected(prompt, TEXT, 90, wordy)
    assert sum(launch.num_steps == 4 for launch in setup.runner.launches) > 4
    assert setup.runner.late_samples < len(tokens["a"]) / 2


def test_neighbours_keep_their_multi_step_decodes_while_tokens_are_masked():
    setup = free_setup(num_decode_steps=4, token_map=lambda context: 5)  # which is never allowed
    add(setup, "a", [1], DIGITS)
    for i in range(3):
        setup.add(f"plain {i}", [2, i], max_tokens=41)
    answers(setup)
    launches = [
        launch
        for launch in setup.runner.launches
        if any(row.request.request_id.startswith("plain") for row in launch.rows)
    ]
    assert sum(launch.num_steps == 4 for launch in launches) == 10
    assert sum(launch.num_steps == 1 for launch in launches) == 1


def test_the_few_masked_rows_of_many_have_no_steps_of_their_own():
    """They get a token of every other launch."""
    setup = free_setup(num_decode_steps=4, max_num_seqs=16, num_blocks=200)
    wanted = {}
    for i in range(12):
        setup.add(f"plain {i}", [2, i], max_tokens=90)
        wanted[f"plain {i}"] = _written([2, i], 90)
    for i in range(3):
        add(setup, f"digits {i}", [1, i], DIGITS)
        wanted[f"digits {i}"] = expected([1, i], DIGITS, 90, wordy)
    steps = []
    while setup.scheduler.get("plain 0/0"):
        setup.engine.step()
        steps = [step.num_steps for step in setup.runner.launches]
    assert steps[:4] == [1, 4, 4, 4]
    assert steps.count(1) <= 3
    assert answers(setup) == wanted


class Broken:
    """A matcher's state that fails in every way."""

    def __getattr__(self, name):
        raise RuntimeError("the library is broken")


class BrokenOnce:
    """A matcher's state that fails as it takes in tokens, and in no other way."""

    def __init__(self, state):
        self._state = state

    def __getattr__(self, name):
        return getattr(self._state, name)

    def try_consume_tokens(self, token_ids):
        raise RuntimeError("the library is broken")


def test_a_grammar_that_breaks_while_a_step_is_planned_is_its_own_requests_error():
    setup = free_setup(num_decode_steps=4, max_num_seqs=16, num_blocks=200)
    for i in range(8):
        setup.add(f"plain {i}", [2, i], max_tokens=60)
    add(setup, "a", [1], DIGITS)
    for _ in range(3):
        setup.engine.step()
    request = setup.scheduler.get("a/0")
    while request.num_in_flight_tokens:
        setup.engine.step()
    request.matcher.state = Broken()
    outputs = run(setup)
    assert outputs["a"].outputs[0].finish_reason == "error"
    assert "the library is broken" in outputs["a"].error
    assert setup.runner.num_resets == 0
    for i in range(8):
        assert outputs[f"plain {i}"].outputs[0].token_ids == _written([2, i], 60)


def _thinks_first(context):
    """The toy model's choice that opens and closes its thinking, behind the prompt of a token."""
    return (TOKENS.open, TOKENS.close)[len(context) - 1] if len(context) < 3 else wordy(context)


@pytest.mark.parametrize("after_thinking", [False, True])
@pytest.mark.parametrize("breaks", [lambda state: Broken(), BrokenOnce], ids=["for good", "once"])
def test_a_grammar_that_breaks_while_tokens_are_read_is_its_own_requests_error(
    breaks, after_thinking
):
    setup = free_setup(
        num_decode_steps=4,
        max_num_seqs=16,
        num_blocks=200,
        token_map=_thinks_first if after_thinking else wordy,
    )
    for i in range(8):
        setup.add(f"plain {i}", [2, 3, i], max_tokens=60)
    given = {"json": LONG_TEXT, "after_thinking": after_thinking}
    setup.add("a", [1], max_tokens=90, structured_outputs=given)
    request = setup.scheduler.get("a/0")
    while request.matcher.is_thinking or not (
        request.num_in_flight_tokens >= 4 and request.has_free_output(4)
    ):
        setup.engine.step()
    known = list(request.output_token_ids)
    grammar = request.matcher._grammar if after_thinking else request.matcher
    grammar.state = breaks(grammar.state)
    outputs = run(setup)
    (answer,) = outputs["a"].outputs
    assert (answer.finish_reason, answer.token_ids) == ("error", known)
    assert "the library is broken" in outputs["a"].error
    assert setup.runner.num_resets == 0
    for i in range(8):
        assert outputs[f"plain {i}"].outputs[0].token_ids == _written([2, 3, i], 60)


def test_many_masked_rows_have_steps_of_their_own():
    setup = free_setup(num_decode_steps=4, max_num_seqs=16, num_blocks=200)
    for i in range(9):
        setup.add(f"plain {i}", [2, i], max_tokens=90)
    for i in range(3):
        add(setup, f"digits {i}", [1, i], DIGITS)
    answers(setup)
    steps = [step.is_apart for step in setup.runner.launches]
    assert sum(steps) > 10


def num_late_steps(texts):
    """Steps of a batch of long texts in which rows are sampled late, and the batch's answers."""
    setup = free_setup(num_decode_steps=4, max_num_seqs=16, num_blocks=200)
    for i in range(texts):
        add(setup, f"text {i}", [1, i], LONG_TEXT, max_tokens=60)
        setup.add(f"plain {i}", [2, i], max_tokens=60)
    return answers(setup), setup.runner.late_samples


def test_a_refusal_within_a_text_costs_no_step_of_its_own(monkeypatch):
    monkeypatch.setattr(free_runs, "_NEARLY_ALL", SHARE_OF_A_TEXT)
    outputs, few = num_late_steps(8)
    assert [outputs[f"text {i}"] for i in range(8)] == [
        expected([1, i], LONG_TEXT, 60, wordy) for i in range(8)
    ]
    monkeypatch.setattr(Request, "next_draw", lambda self: None)
    same, many = num_late_steps(8)
    assert same == outputs
    assert few < many


def test_a_refusal_after_a_very_long_run_costs_no_step_of_its_own():
    """Whatever its mask leaves: here, digits."""
    (bang,) = TOKENIZER.encode("!", add_special_tokens=False)
    (digit,) = TOKENIZER.encode("7", add_special_tokens=False)
    setup = free_setup(
        num_decode_steps=4, token_map=lambda context: bang if len(context) % 41 == 40 else digit
    )
    for i in range(4):
        setup.add(f"{i}", [1, i], structured_outputs={"regex": "[0-9]+"}, max_tokens=100)
    outputs = answers(setup)
    assert all(len(tokens) == 100 and bang not in tokens for tokens in outputs.values())
    masked = [sum(row.only_mask is not None for row in step.rows) for step in setup.runner.launches]
    assert sum(masked) == 8
    assert setup.runner.late_samples == 2  # the first token, and the one that is checked alone


def unread_at_each_draw(runner):
    """How many steps are unread whenever one is drawn late, itself included; it grows."""
    unread, sample = [], runner.sample
    runner.sample = lambda step: (unread.append(runner.unread), sample(step))[1]
    return unread


def test_a_row_of_known_tokens_is_sampled_without_reading_the_step_before():
    setup = free_setup(num_decode_steps=4, token_map=lambda context: 5)
    add(setup, "a", [1], DIGITS)
    setup.add("plain", [2, 3], max_tokens=61)
    unread = unread_at_each_draw(setup.runner)
    answers(setup)
    assert unread.count(2) > 5


def test_the_others_are_launched_behind_a_row_of_known_tokens_before_any_step_is_read():
    setup = free_setup(num_decode_steps=4, token_map=lambda context: 5)
    add(setup, "a", [1], DIGITS)
    setup.add("plain", [2, 3], max_tokens=61)
    unread, launch = [], setup.runner.launch
    setup.runner.launch = lambda step: (unread.append(setup.runner.unread), launch(step))[1]
    answers(setup)
    launched = zip(setup.runner.launches, unread[1:], strict=False)
    behind = [number for step, number in launched if step.is_apart and not step.is_decode]
    assert behind == [2] * 3


def test_what_is_forced_after_a_very_long_run_is_appended_all_the_same():
    (letter,) = TOKENIZER.encode("x", add_special_tokens=False)
    given = {"regex": "[xy]{40} and that is the end of it: [a-z]{20}"}

    def answer(num_decode_steps):
        setup = free_setup(num_decode_steps=num_decode_steps, token_map=lambda context: letter)
        setup.add("a", [1], structured_outputs=given, max_tokens=90)
        for i in range(2):
            setup.add(f"plain {i}", [2, i], max_tokens=100)
        return answers(setup)["a"]

    assert answer(4) == answer(1)


def test_a_row_that_is_drawn_freely_beside_late_ones_gets_no_mask(monkeypatch):
    monkeypatch.setattr(free_runs, "_NEARLY_ALL", 0.0)
    (line_break,) = TOKENIZER.encode("\n", add_special_tokens=False)
    setup = free_setup(token_map=lambda context: line_break if len(context) == 9 else LETTERS[0])
    add(setup, "a", [1], TEXT, max_tokens=20)
    matcher = setup.scheduler.get("a/0").matcher
    while not (matcher.is_redrawn_at(8) and setup.runner.launches[-1].masks):
        setup.engine.step()
    add(setup, "b", [2, 3], DIGITS)  # is masked at once, while the other's masked token is unread
    unread = unread_at_each_draw(setup.runner)
    setup.engine.step()
    assert unread == [2]
    assert matcher.is_redrawn_at(8)
    assert not matcher.is_late_at(9)
    launch = setup.runner.launches[-1]
    assert [launch.rows[i].request.request_id for i in launch.masks.rows] == ["b/0"]


def test_forced_tokens_follow_a_refusal_while_dropped_ones_are_in_flight():
    setup, schema = free_setup(num_decode_steps=4), FIXED_KEYS[1]
    add(setup, "a", [1, 2], schema)
    for i in range(4):
        setup.add(f"plain {i}", [5, i], max_tokens=70)
    outputs = answers(setup)
    assert outputs["a"] == expected([1, 2], schema, 90, wordy)
    for i in range(4):
        assert outputs[f"plain {i}"] == [*_written([5, i], 70)]


def _written(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(wordy(tokens))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("choose", [wordy, None], ids=["wordy", "any token"])
@pytest.mark.parametrize("seed", range(12))
def test_batches_faults_and_preemption_change_no_answer(seed, choose, monkeypatch):
    monkeypatch.setattr(free_runs, "_NEARLY_ALL", SHARE_OF_A_TEXT)
    rng = random.Random(seed)
    monkeypatch.setattr(free_runs, "_VERY_LONG", rng.choice([6, 32]))
    monkeypatch.setattr(step_planner, "_MOST_LONE", rng.choice([0.25, 2]))
    monkeypatch.setattr(step_planner, "_MOST_DRAWS", rng.choice([1, 16]))
    swaps = rng.random() < 0.5
    setup = free_setup(
        block_size=rng.choice([8, 16]),
        num_blocks=rng.choice([20, 200]),
        max_num_batched_tokens=rng.choice([8, 32]),
        num_decode_steps=rng.choice([1, 4, 4]),
        preemption_mode="swap" if swaps else "recompute",
        num_host_blocks=8 if swaps else 0,
        max_num_seqs=rng.choice([4, 8]),
        token_map=choose,
    )
    model = choose or (lambda context: next_token(context, TOKENIZER.vocab_size))
    fails = rng.choice(["fail_launches", "fail_samples", "fail_fetches"])
    getattr(setup.runner, fails).add(rng.randrange(30))
    wanted = {}
    for i in range(rng.randint(1, 6)):
        schema, prompt = (
            rng.choice([TEXT, LONG_TEXT, LONG_TEXT, *SCHEMAS, *FIXED_KEYS]),
            [1 + i, rng.randrange(99)],
        )
        length = rng.choice([7, 40, 90])
        wanted[f"{i}"] = expected(prompt, schema, length, model)
        add(setup, f"{i}", prompt, schema, max_tokens=length)
    for i in range(rng.randint(0, 6)):
        setup.add(f"plain {i}", [5, 6, i], max_tokens=60)
        tokens = [5, 6, i]
        while len(tokens) < 63:
            tokens.append(model(tokens))
        wanted[f"plain {i}"] = tokens[3:]

    def interfere():
        if rng.random() < 0.1:
            setup.scheduler.preempt(rng.randint(1, 3))

    outputs = run(setup, interfere)
    assert {name: o.outputs[0].token_ids for name, o in outputs.items()} == wanted
    assert not any(error for _, error in tokens_of(outputs).values())


def test_an_answer_runs_freely_after_its_thoughts():
    setup, prompt = free_setup(num_decode_steps=4), [1, TOKENS.open]
    given = StructuredOutputsParams(json=TEXT, after_thinking=True)
    thoughts = [*LETTERS[:3], TOKENS.close]

    def choose(context):
        number = len(context) - 2
        return thoughts[number] if number < len(thoughts) else wordy(context)

    setup.runner._next = choose
    setup.add("a", prompt, structured_outputs=given, max_tokens=90)
    tokens = answers(setup)["a"]
    begin = tokens.index(TOKENS.close) + 1
    breaks = len(TOKENS.ending) - TOKENS.ending.index(TOKENS.close) - 1
    context = prompt + tokens[: begin + breaks]
    assert tokens[begin + breaks :] == expected(context, TEXT, 90 - begin - breaks, wordy)
    assert sum(launch.num_steps == 4 for launch in setup.runner.launches) > 4


def test_an_answer_that_does_not_think_after_all_runs_freely_too():
    setup, given = (
        free_setup(num_decode_steps=4),
        StructuredOutputsParams(json=TEXT, after_thinking=True),
    )
    setup.runner.fail_samples.add(1)
    for i in range(20):
        setup.add(f"{i}", [i, i], structured_outputs=given, max_tokens=90)
    for name, tokens in answers(setup).items():
        wanted = expected([int(name)] * 2, TEXT, 90, wordy, may_think=True)
        assert tokens[: len(wanted)] == wanted
        assert tokens == wanted or wanted == [TOKENS.open]
    assert sum(launch.num_steps == 4 for launch in setup.runner.launches) > 4


def test_a_stop_string_ends_a_free_answer():
    setup = free_setup(num_decode_steps=4)
    add(setup, "a", [1, 2], TEXT, stop=["o"])
    (answer,) = run(setup)["a"].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "o")


def test_requests_that_come_while_a_masked_token_is_in_flight_change_no_answer():
    """Their prompts are drawn late, beside a token that is free and has its mask behind it."""
    (tilde,) = TOKENIZER.encode("~", add_special_tokens=False)
    given = {"structured_outputs": {"regex": "[^~]+"}, "max_tokens": 60}

    def choose(context):
        return wordy(context) if next_token(context, 7) else tilde

    def answers_of(names):
        setup, waiting = free_setup(token_map=choose), list(names)

        def next_comes():
            if waiting:
                setup.add(waiting[0], [int(waiting.pop(0)), 5], **given)

        next_comes()
        return {name: o.outputs[0].token_ids for name, o in run(setup, next_comes).items()}

    names = [str(i) for i in range(7)]
    alone = {name: answers_of([name])[name] for name in names}
    assert answers_of(names) == alone
