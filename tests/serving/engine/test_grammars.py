"""Answers under masks, on a toy device: the same whatever happens, sooner by forced tokens."""

import json
import random

import jsonschema
import pytest

from jaxinfer.serving.constraints.grammar.matcher import Matcher
from jaxinfer.serving.constraints.request_constraints import RequestConstraints
from jaxinfer.serving.engine import host_dependent
from jaxinfer.serving.requests.completion import Completion
from jaxinfer.testing.fake_runner import continuation
from tests.serving.constraints.grammar.grammars import SCHEMAS, bundled_tokenizer, constraints
from tests.serving.engine.running import run_engine
from tests.serving.engine.test_engine import Setup

FIXED_KEYS = [
    {
        "type": "object",
        "properties": {
            "temperature_celsius": {"type": "integer", "minimum": 0, "maximum": 40},
            "wind_direction": {"enum": ["north", "east", "south", "west"]},
            "will_it_rain": {"type": "boolean"},
        },
        "required": ["temperature_celsius", "wind_direction", "will_it_rain"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "name": {"const": "get_weather"},
            "arguments": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Paris", "London"]},
                    "days": {"type": "integer", "minimum": 1, "maximum": 7},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer", "maximum": 99, "minimum": 0}},
            "required": ["id"],
            "additionalProperties": False,
        },
        "minItems": 3,
        "maxItems": 3,
    },
]
"""As callers of tools and extractors have them: keys that must come in an order, short values."""


def guided_setup(**options):
    tokenizer = bundled_tokenizer()
    own = {"constraints": constraints(), "eos_token_ids": tokenizer.eos_token_ids}
    return Setup(tokenizer=tokenizer, **own | options)


def troubled_setup(rng, make):
    """One whose steps are small, whose blocks run out, and of which one step fails."""
    swaps = rng.random() < 0.5
    setup = make(
        block_size=rng.choice([8, 16]),
        num_blocks=rng.choice([16, 200]),
        max_num_batched_tokens=rng.choice([8, 32]),
        preemption_mode="swap" if swaps else "recompute",
        num_host_blocks=8 if swaps else 0,
        max_num_seqs=4,
    )
    fails = rng.choice(["fail_launches", "fail_samples", "fail_fetches"])
    getattr(setup.runner, fails).add(rng.randrange(30))
    return setup


def add_all(setup, schemas, **params):
    for i, schema in enumerate(schemas):
        given = {"structured_outputs": {"json": schema}, "max_tokens": 90, **params}
        setup.add(f"json {i}", [1 + i, 2, 3] * 4, **given)


def run(setup, interfere=lambda: None):
    outputs = run_engine(setup.engine, interfere, setup.scheduler.check_invariants)
    pool = setup.scheduler.pool
    assert pool.num_free_blocks == pool.num_usable_blocks
    return {output.request_id: output for output in outputs}


def tokens_of(outputs):
    return {
        name: ([(c.token_ids, c.finish_reason) for c in output.outputs], output.error)
        for name, output in outputs.items()
    }


@pytest.fixture
def masks_alone(monkeypatch):
    """A run in which forced tokens are sampled, one a step."""

    def run_alone(setup):
        with monkeypatch.context() as patch:
            patch.setattr(host_dependent, "FEWEST_FORCED", 1 << 30)
            return run(setup)

    return run_alone


def answered(schemas, **params):
    setup = guided_setup()
    add_all(setup, schemas, **params)
    return setup


def test_answers_follow_their_schemas_and_end_where_these_do():
    outputs = run(answered(SCHEMAS))
    for i, schema in enumerate(SCHEMAS):
        answer = outputs[f"json {i}"].outputs[0]
        assert answer.finish_reason == "stop"
        assert answer.stop_reason is None
        jsonschema.validate(json.loads(answer.text), schema)


def test_forced_tokens_change_no_answer_and_save_steps(masks_alone):
    schemas, forced, alone = FIXED_KEYS, answered(FIXED_KEYS), answered(FIXED_KEYS)
    assert tokens_of(run(forced)) == tokens_of(masks_alone(alone))
    assert len(schemas) == 3
    singly = sum(steps_of_one(schema, masks_alone) for schema in FIXED_KEYS)
    together = sum(steps_of_one(schema, run) for schema in FIXED_KEYS)
    assert singly >= 1.5 * together, (singly, together)


def steps_of_one(schema, run):
    setup = answered([schema])
    run(setup)
    return len(setup.runner.launches)


@pytest.mark.parametrize("seed", range(6))
def test_batches_chunks_faults_and_preemption_change_no_answer(seed, masks_alone):
    rng = random.Random(seed)
    schemas = [rng.choice(SCHEMAS + FIXED_KEYS) for _ in range(rng.randint(1, 6))]
    length = rng.choice([7, 90])
    expected = tokens_of(masks_alone(answered(schemas, max_tokens=length)))
    setup = troubled_setup(rng, guided_setup)
    add_all(setup, schemas, max_tokens=length)
    setup.add("plain", [5, 6, 7], max_tokens=12)

    def interfere():
        if rng.random() < 0.1:
            setup.scheduler.preempt(rng.randint(1, 3))

    outputs = run(setup, interfere)
    plain = outputs.pop("plain").outputs[0].token_ids
    assert plain == continuation([5, 6, 7], 12, bundled_tokenizer().vocab_size)
    assert tokens_of(outputs) == expected


@pytest.mark.parametrize(
    "params",
    [{"logprobs": 1}, {"presence_penalty": 1.0}, {"bad_words": ["x"]}, {"n": 3}, {"stop": [": "]}],
    ids=lambda params: next(iter(params)),
)
def test_other_parameters_go_with_a_grammar(params, masks_alone):
    outputs = run(answered(FIXED_KEYS[:1], **params))
    assert tokens_of(outputs) == tokens_of(masks_alone(answered(FIXED_KEYS[:1], **params)))
    for answer in outputs["json 0"].outputs:
        assert answer.finish_reason == "stop"
        if "logprobs" in params:
            assert len(answer.logprobs) == len(answer.token_ids)
        if "stop" in params:
            assert answer.text == '{"temperature_celsius"'
        else:
            jsonschema.validate(json.loads(answer.text), FIXED_KEYS[0])


def test_the_next_tokens_are_drawn_before_callers_hear_of_the_last(monkeypatch):
    setup, events = guided_setup(), []
    setup.add("a", [1, 2], structured_outputs={"regex": "[a-z]{5}"}, max_tokens=9)
    sample, extend = setup.runner.sample, Completion.extend
    setup.runner.sample = lambda *step: (events.append("draw"), sample(*step))[1]

    def extend_and_note(*arguments):
        events.append("hear")
        extend(*arguments)

    monkeypatch.setattr(Completion, "extend", extend_and_note)
    run(setup)
    assert events[:4] == ["draw", "draw", "hear", "draw"]


def test_forced_tokens_stop_at_the_request_s_length():
    outputs = run(answered(FIXED_KEYS[:1], max_tokens=3))
    answer = outputs["json 0"].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (3, "length")


def test_ignore_eos_has_no_effect():
    answer = run(answered([{"const": 1}], ignore_eos=True))["json 0"].outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("1", "stop", None)


@pytest.mark.parametrize("step", ["follow", "finish_mask", "forced_tokens"])
def test_a_grammar_that_fails_ends_its_own_request_alone(step, monkeypatch):
    expected = tokens_of(run(answered(FIXED_KEYS[:2])))
    setup, method = answered(FIXED_KEYS[:2]), getattr(Matcher, step)

    setup.add("bad", [9], structured_outputs={"regex": "[a-z]{30}"}, max_tokens=40)
    bad = setup.scheduler.get("bad/0").constraint.matcher

    def fail(self, *arguments):
        if self is bad and setup.runner.num_launches > 4:
            raise ValueError("the lexer is too complex")
        return method(self, *arguments)

    monkeypatch.setattr(Matcher, step, fail)
    outputs = run(setup)
    assert outputs["bad"].error == "ValueError: the lexer is too complex"
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert setup.runner.num_resets == 0
    del outputs["bad"]
    assert tokens_of(outputs) == expected


def test_an_engine_without_a_tokenizer_refuses_grammars():
    with pytest.raises(ValueError, match="needs a tokenizer"):
        add_all(Setup(constraints=RequestConstraints(None, 97, [])), [{"type": "null"}])
