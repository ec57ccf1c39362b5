"""Grammars on a tiny model: each kind, beside other requests, alone at fault, on two devices."""

import asyncio
import json
import re

import jsonschema
import pytest

from jaxinfer import AsyncLLM, SamplingParams, StructuredOutputsParams
from jaxinfer.serving.engine import host_dependent
from jaxinfer.serving.programs.kinds.set_edits import SetMasksKey
from jaxinfer.serving.requests.prompts import PromptReader
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
def test_forced_tokens_change_nothing(llm, more, monkeypatch):
    params = params_of({"json": SCHEMA}, **{"temperature": 0.0, **more})
    with_forced = generate(llm, PROMPTS, params)
    monkeypatch.setattr(host_dependent, "FEWEST_FORCED", 1 << 30)
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
def test_a_grammar_begins_when_the_thinking_is_over(llm, tokenizer, more, monkeypatch):
    opening, closing = (tokenizer.token_to_id(tag) for tag in ("<think>", "</think>"))
    given = {"json": SCHEMA, "after_thinking": True}
    # Sooner or later this model closes its thinking by itself.
    bias = {closing: 5.0, **dict.fromkeys(tokenizer.eos_token_ids, -100.0)}
    params = params_of(given, **({"seed": 1, "max_tokens": 50, "logit_bias": bias} | more))
    prompts = [[1, 2, opening], [3, opening], [4, 5, opening]]
    outputs = generate(llm, [*prompts, PROMPTS[0]], [*[params] * 3, GREEDY])
    alone = [generate(llm, [prompt], params)[0] for prompt in prompts]
    assert ids(outputs) == [*ids(alone), *ids(generate(llm, PROMPTS[:1], GREEDY))]
    monkeypatch.setattr(host_dependent, "FEWEST_FORCED", 1 << 30)
    for output, other in zip(outputs, generate(llm, prompts, params), strict=False):
        for answer, unforced in zip(output.outputs, other.outputs, strict=True):
            assert answer.token_ids == unforced.token_ids
            _, _, rest = answer.text.partition("</think>")
            assert rest.startswith("\n\n")
            jsonschema.validate(json.loads(rest), SCHEMA)
            if "thinking_token_budget" in more:
                assert answer.token_ids.index(closing) <= more["thinking_token_budget"] + 1


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


@pytest.mark.slow("alone")
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
