"""Grammars that begin after `</think>`, on a toy device: as if each token were sampled alone."""

import random

import numpy as np
import pytest

from jaxinfer import StructuredOutputsParams
from jaxinfer.model.text.thinking_tokens import thinking_tokens
from jaxinfer.serving.engine import host_dependent
from jaxinfer.serving.slots.step_masks import MaskBuffer
from jaxinfer.testing.fake_runner import next_token
from tests.serving.constraints.grammar.grammars import (
    SCHEMAS,
    bundled_tokenizer,
    constraints,
    shared_compiler,
)
from tests.serving.engine.test_engine import Setup
from tests.serving.engine.test_grammars import FIXED_KEYS, run, tokens_of, troubled_setup

TOKENS = thinking_tokens(bundled_tokenizer(), bundled_tokenizer().vocab_size)
BREAK = list(TOKENS.ending[TOKENS.ending.index(TOKENS.close) + 1 :])
ENDS = bundled_tokenizer().eos_token_ids

CHOICE = {"choice": ["yes", "no"]}


def think(context):
    """The toy model's choice where it is free; it closes its thinking now and then."""
    number = next_token(context, 1_000_003)
    return TOKENS.close if number % 9 == 0 else number % 2000


def thought(prompt, count):
    """What the toy model writes after a prompt where nothing has a grammar."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(think(tokens))
    return tokens[len(prompt) :]


def expected(prompt, grammar, max_tokens):
    """The answer that is sampled token by token, each after all before it."""
    grammar, tokens = StructuredOutputsParams(**grammar), []
    matcher = shared_compiler().get(grammar).matcher()
    is_open = TOKENS.open in prompt
    num_taken = 0
    while len(tokens) < max_tokens and not (tokens and tokens[-1] in ENDS):
        context = prompt + tokens
        if is_open and TOKENS.close not in tokens:
            tokens.append(think(context))
            continue
        if is_open and (done := len(tokens) - tokens.index(TOKENS.close) - 1) < len(BREAK):
            tokens.append(BREAK[done])
            continue
        first = tokens.index(TOKENS.close) + 1 + len(BREAK) if is_open else 0
        matcher.consume(tokens[first + num_taken :])
        num_taken = len(tokens) - first
        allowed = MaskBuffer().fill([matcher])[0]
        if not tokens:
            allowed[TOKENS.open // 32] |= np.uint32(1 << TOKENS.open % 32).view(np.int32)
        ids = np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))
        tokens.append(int(ids[next_token(context, len(ids))]))
        is_open = is_open or tokens == [TOKENS.open]
    return tokens


def thinking_setup(**options):
    return Setup(
        tokenizer=bundled_tokenizer(),
        constraints=constraints(),
        eos_token_ids=ENDS,
        token_map=think,
        **options,
    )


def add(setup, name, prompt, grammar, **params):
    given = StructuredOutputsParams(**grammar, after_thinking=True)
    setup.add(name, prompt, structured_outputs=given, **{"max_tokens": 90} | params)


def answers(setup):
    return {name: output.outputs[0].token_ids for name, output in run(setup).items()}


def test_thinking_is_free_and_then_the_grammar_begins():
    setup, prompt = thinking_setup(), [1, 2, TOKENS.open]
    add(setup, "a", prompt, CHOICE)
    (output,) = run(setup).values()
    tokens = output.outputs[0].token_ids
    assert tokens == expected(prompt, CHOICE, 90)
    assert tokens.count(TOKENS.close) == 1
    assert output.outputs[0].text.split("</think>")[1] in ("\n\nyes", "\n\nno")
    assert output.outputs[0].finish_reason == "stop"


def test_a_prompt_that_has_closed_the_thinking_leaves_the_grammar_alone():
    setup = thinking_setup()
    add(setup, "a", [TOKENS.open, 5, TOKENS.close], CHOICE)
    assert run(setup)["a"].outputs[0].text in CHOICE["choice"]


def test_an_answer_opens_its_thinking_or_begins_with_its_grammar():
    setup, beginnings = thinking_setup(), set()
    for i in range(20):
        add(setup, f"{i}", [i, i], {"regex": "[ab]c"})
    for name, tokens in answers(setup).items():
        assert tokens == expected([int(name)] * 2, {"regex": "[ab]c"}, 90)
        beginnings.add(tokens[0] == TOKENS.open)
    assert beginnings == {True, False}


@pytest.mark.parametrize("more", [{"n": 3}, {"logprobs": 1}, {"presence_penalty": 1.0}])
def test_other_parameters_go_with_thinking(more):
    setup, prompt = thinking_setup(), [1, 2, TOKENS.open]
    grammar = {"json": FIXED_KEYS[0]}
    add(setup, "a", prompt, grammar, **more)
    for answer in run(setup)["a"].outputs:
        assert answer.token_ids == expected(prompt, grammar, 90)
        if "logprobs" in more:
            assert len(answer.logprobs) == len(answer.token_ids)


def test_a_stop_string_ends_the_thinking_and_the_answer():
    setup, prompt = thinking_setup(), [1, 2, TOKENS.open]
    add(setup, "a", prompt, CHOICE, stop=["</think>"])
    (answer,) = run(setup)["a"].outputs
    assert (answer.finish_reason, answer.stop_reason) == ("stop", "</think>")


@pytest.mark.parametrize("seed", range(12))
def test_batches_faults_and_preemption_change_no_answer(seed, monkeypatch):
    rng = random.Random(seed)
    if rng.random() < 0.3:
        monkeypatch.setattr(host_dependent, "FEWEST_FORCED", 1 << 30)
    setup = troubled_setup(rng, thinking_setup)
    wanted = {}
    for i in range(rng.randint(1, 6)):
        grammar = {"json": rng.choice(SCHEMAS + FIXED_KEYS)}
        prompt = [1 + i, rng.randrange(99), *rng.choice([[], [TOKENS.open]])]
        length = rng.choice([7, 40, 90])
        wanted[f"{i}"] = expected(prompt, grammar, length)
        add(setup, f"{i}", prompt, grammar, max_tokens=length)
    setup.add("plain", [5, 6, 7], max_tokens=50)
    wanted["plain"] = thought([5, 6, 7], 50)

    def interfere():
        if rng.random() < 0.1:
            setup.scheduler.preempt(rng.randint(1, 3))

    outputs = run(setup, interfere)
    assert {name: o.outputs[0].token_ids for name, o in outputs.items()} == wanted
    assert not any(error for _, error in tokens_of(outputs).values())
