"""Grammars on a tiny model: each kind, beside other requests, alone at fault, on two devices."""

import asyncio
import json
import re
import sys

import jsonschema
import numpy as np
import pytest
import scipy.stats

from jaxinfer import AsyncLLM, SamplingParams, StructuredOutputsParams
from jaxinfer.serving.guided import free_runs
from jaxinfer.serving.programs.kinds.set_edits import SetMasksKey
from jaxinfer.serving.requests.prompts import PromptReader
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.scheduler import step_planner
from tests.serving.requests.host_request import host_request
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    MAX_MODEL_LEN,
    PROMPTS,
    ids,
    small_llm,
    small_params,
)

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", 1]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def is_json(schema):
    return lambda text: jsonschema.validate(json.loads(text), schema) is None


KINDS = [
    ({"json": SCHEMA}, is_json(SCHEMA)),
    ({"regex": "[ab]{3}c"}, lambda text: re.fullmatch("[ab]{3}c", text)),
    ({"choice": ["yes", "no", "maybe"]}, lambda text: text in ("yes", "no", "maybe")),
    ({"grammar": 'start: ("a" | "b") "=" /[0-9]{2}/'}, lambda text: text[1] == "=" and text[2:]),
    ({"grammar": 'root ::= "x" [0-9]'}, lambda text: re.fullmatch("x[0-9]", text)),
]


def params_of(given, **more):
    given = StructuredOutputsParams(**given)
    return SamplingParams(**({"max_tokens": 40} | more), structured_outputs=given)


def generate(llm, prompts, params):
    return llm.generate(prompts, params, use_tqdm=False)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_each_kind_beside_requests_without_grammars(llm, temperature):
    expected = ids(generate(llm, PROMPTS, GREEDY))
    guided = [
        params_of(given, temperature=temperature, seed=i) for i, (given, _) in enumerate(KINDS)
    ]
    params = [*[GREEDY] * len(PROMPTS), *guided]
    prompts = [*PROMPTS, *[[7, 8, 9 + i] for i in range(len(KINDS))]]
    outputs = generate(llm, prompts, params)
    assert ids(outputs)[: len(PROMPTS)] == expected
    for (_, is_valid), output in zip(KINDS, outputs[len(PROMPTS) :], strict=True):
        answer = output.outputs[0]
        assert (answer.finish_reason, output.error) == ("stop", None)
        assert is_valid(answer.text)


def test_an_object_may_be_cut_by_its_length(llm):
    (output,) = generate(llm, [PROMPTS[0]], params_of({"json_object": True}, max_tokens=4))
    assert output.outputs[0].text.startswith("{")
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"logprobs": 2},
        {"n": 2, "temperature": 1.0, "seed": 3},
        {"frequency_penalty": 2.0, "repetition_penalty": 3.0},
    ],
)
def test_forced_tokens_change_nothing(llm, more, masks_only, monkeypatch):
    params = params_of({"json": SCHEMA}, **{"temperature": 0.0, **more})
    with_forced = generate(llm, PROMPTS, params)
    monkeypatch.setattr(free_runs, "FEWEST_FORCED", 1 << 30)
    for output, alone in zip(with_forced, generate(llm, PROMPTS, params), strict=True):
        for own, other in zip(output.outputs, alone.outputs, strict=True):
            assert (own.token_ids, own.text) == (other.token_ids, other.text)
            assert own.logprobs == other.logprobs
            jsonschema.validate(json.loads(own.text), SCHEMA)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"thinking_token_budget": 0},
        {"thinking_token_budget": 3},
        {"n": 2, "seed": 3},
        {"logprobs": 2},
        {"frequency_penalty": 0.5, "thinking_token_budget": 5},
    ],
    ids=lambda more: "-".join(more) or "alone",
)
def test_a_grammar_begins_when_the_thinking_is_over(llm, tokenizer, more, masks_only, monkeypatch):
    opening, closing = (tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    given = {"json": SCHEMA, "after_thinking": True}
    # Sooner or later this model closes its thinking by itself.
    bias = {closing: 5.0, **dict.fromkeys(tokenizer.eos_token_ids, -100.0)}
    params = params_of(given, **({"seed": 1, "max_tokens": 50, "logit_bias": bias} | more))
    prompts = [[1, 2, opening], [3, opening], [4, 5, opening]]
    outputs = generate(llm, [*prompts, PROMPTS[0]], [*[params] * 3, GREEDY])
    alone = [generate(llm, [prompt], params)[0] for prompt in prompts]
    assert ids(outputs) == [*ids(alone), *ids(generate(llm, PROMPTS[:1], GREEDY))]
    monkeypatch.setattr(free_runs, "FEWEST_FORCED", 1 << 30)
    for output, other in zip(outputs, generate(llm, prompts, params), strict=False):
        for answer, unforced in zip(output.outputs, other.outputs, strict=True):
            assert answer.token_ids == unforced.token_ids
            _, _, rest = answer.text.partition("</think>")
            assert rest.startswith("\n\n")
            jsonschema.validate(json.loads(rest), SCHEMA)
            if "thinking_token_budget" in more:
                assert answer.token_ids.index(closing) <= more["thinking_token_budget"] + 1


def test_thinking_that_ends_within_a_multi_step_decode_ends_the_same(llm, tokenizer):
    opening, closing = (tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    given = {"regex": "[ab]{3}c", "after_thinking": True}
    params = params_of(given, seed=5, max_tokens=40, logit_bias={closing: 5.0})
    prompts = [[i, i + 1, opening] for i in range(6)]
    expected = ids(generate(llm, prompts, params))
    assert len({tokens.index(closing) for tokens in expected if closing in tokens}) > 2
    with small_llm(tokenizer=tokenizer, num_decode_steps=1) as single:
        assert ids(generate(single, prompts, params)) == expected


STRINGS = {"json": {"type": "string", "minLength": 20, "maxLength": 40}}


LONG_STRINGS = {"json": {"type": "string", "minLength": 200}}


@pytest.mark.parametrize(
    "more", [{"temperature": 0.0}, {"seed": 3}, {"seed": 4, "top_k": 20, "top_p": 0.9, "n": 2}]
)
def test_answers_drawn_freely_do_not_depend_on_the_length_of_a_launch(
    llm, tokenizer, more, monkeypatch
):
    # Half of this vocabulary is no text: otherwise runs would be too short for it.
    monkeypatch.setattr(free_runs, "_NEARLY_ALL", 0.2)
    monkeypatch.setattr(free_runs, "_LONG", 0)
    monkeypatch.setattr(step_planner, "_MOST_LONE", 2)
    draws, next_draw = [], Request.next_draw
    monkeypatch.setattr(
        Request, "next_draw", lambda of: (draws.append(next_draw(of)), draws[-1])[1]
    )
    texts = params_of(LONG_STRINGS, max_tokens=60, **more)
    params = [texts, params_of(STRINGS, **more), params_of({"json": SCHEMA}, **more), GREEDY]
    prompts = [*PROMPTS, PROMPTS[0]]
    pairs = list(zip(prompts, params, strict=True))
    expected = [ids(generate(llm, [prompt], each)) for prompt, each in pairs]
    assert [ids([output]) for output in generate(llm, prompts, params)] == expected
    kinds = {(draw.mask is None, draw.is_alone) for draw in draws if draw}
    assert kinds == {(False, False), (False, True), (True, True)}
    with small_llm(tokenizer=tokenizer, num_decode_steps=1) as single:
        assert [ids([output]) for output in generate(single, prompts, params)] == expected


@pytest.mark.parametrize(
    "more",
    [{}, {"thinking_token_budget": 3}, {"thinking_token_budget": 40}],
    ids=lambda more: "-".join(map(str, more.values())) or "alone",
)
@pytest.mark.parametrize("thinks", [False, True])
def test_the_likeliest_tokens_are_those_under_masks(llm, tokenizer, more, thinks, monkeypatch):
    opening = tokenizer.token_to_id("<think>")
    given = STRINGS | {"after_thinking": thinks}
    params = params_of(given, **{"temperature": 0.0, "max_tokens": 50, **more})
    prompts = [[*prompt, opening] if thinks else prompt for prompt in PROMPTS]
    free = ids(generate(llm, prompts, params))
    monkeypatch.setattr(free_runs, "FEWEST_MASKED", sys.maxsize)
    assert free == ids(generate(llm, prompts, params))


def second_tokens(llm, count):
    """How often each token comes second, where half of the model's choices are allowed."""
    given = {"regex": "x[^aeiours ]{9}"}
    params = [params_of(given, max_tokens=2, temperature=1.0, seed=i) for i in range(count)]
    outputs = generate(llm, PROMPTS[:1] * count, params)
    tokens = [output.outputs[0].token_ids[1] for output in outputs]
    return np.bincount(tokens, minlength=CONFIG.vocab_size)


def test_tokens_that_are_drawn_freely_and_checked_have_the_distribution_of_masked_ones(
    llm, monkeypatch
):
    free = second_tokens(llm, 3000)
    monkeypatch.setattr(free_runs, "FEWEST_MASKED", sys.maxsize)
    masked = second_tokens(llm, 3000)
    common = free + masked >= 20
    counts = np.stack([np.append(each[common], each[~common].sum()) for each in (free, masked)])
    assert scipy.stats.chi2_contingency(counts).pvalue > 1e-3
    assert (free != masked).any()


def test_a_model_that_does_not_think_refuses_a_grammar_after_thinking(tokenizer):
    reader = PromptReader(tokenizer, 100, MAX_MODEL_LEN)  # its logits end before </think>
    with pytest.raises(ValueError, match=r"structured_outputs\.after_thinking: this model has no"):
        reader.check_params(params_of({"regex": "a", "after_thinking": True}))


def test_plain_batches_run_no_program_of_grammars(tokenizer):
    with small_llm(tokenizer=tokenizer) as llm:
        compiled = llm._loaded.replicas[0].runner._compiled
        generate(llm, PROMPTS, GREEDY)
        assert not any(isinstance(key, SetMasksKey) for key in compiled)
        generate(llm, PROMPTS, params_of({"regex": "a"}))
        assert any(isinstance(key, SetMasksKey) for key in compiled)


FAULTS = [
    ({"json": {"type": "something"}}, "Invalid type"),
    ({"json": {"type": "string", "pattern": "("}}, "unclosed group"),
    ({"json": '{"type":"array","items":' * 400 + "{}" + "}" * 400}, "recursion limit"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"grammar": "start: nothing"}, "unknown name"),
]


@pytest.mark.parametrize(("given", "message"), FAULTS)
def test_what_is_no_grammar_fails_its_call_at_once(llm, given, message):
    with pytest.raises(ValueError, match=rf"structured_outputs\..*{message}"):
        generate(llm, PROMPTS, params_of(given))
    assert not llm.has_unfinished_requests()


def test_one_that_fails_leaves_the_tasks_beside_it_alone(tokenizer):
    options = {"max_model_len": MAX_MODEL_LEN, "max_num_seqs": 4, "num_kv_blocks": 65}
    options |= {"params": small_params(), "config": CONFIG}

    async def run(engine, params):
        async for output in engine.generate([1, 2, 3], params):
            last = output
        return last.outputs[0]

    async def main():
        async with AsyncLLM(**options, tokenizer=tokenizer, show_progress=False) as engine:
            tasks = [run(engine, GREEDY)]
            tasks += [run(engine, params_of(given)) for given, _ in FAULTS]
            tasks += [run(engine, params_of({"regex": "(a+)+b"})), run(engine, GREEDY)]
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, *failed, hostile, last = asyncio.run(main())
    assert first.token_ids == last.token_ids
    assert len(first.token_ids) == 6
    assert hostile.text.startswith("a")
    assert all(isinstance(error, ValueError) for error in failed)


@pytest.mark.slow  # compiles for two devices
def test_a_split_vocabulary_gets_the_same_masks(llm, tokenizer):
    params = [
        params_of({"json": SCHEMA}, temperature=0.0),
        params_of({"regex": "[a-z]{8}"}, seed=1),
    ]
    expected = ids(generate(llm, PROMPTS[:2], params))
    with small_llm(tokenizer=tokenizer, tensor_parallel_size=2) as split:
        assert ids(generate(split, PROMPTS[:2], params)) == expected


def test_an_engine_without_a_tokenizer_refuses_grammars():
    with small_llm() as llm, pytest.raises(ValueError, match="structured_outputs needs a token"):
        generate(llm, PROMPTS, params_of({"regex": "a"}))


def test_a_request_with_a_grammar_samples_late():
    assert host_request("a", [1], params_of({"regex": "a"})).samples_late
