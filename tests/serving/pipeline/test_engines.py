"""What surrounds a pipeline's steps: streams, grammars, faults, pooling and refusals."""

import asyncio
import re

import numpy as np
import pytest

from jaxinfer import (
    LLM,
    AsyncLLM,
    Capture,
    EngineConfig,
    SamplingParams,
    StructuredOutputsParams,
    make_mesh,
)
from jaxinfer.testing import TINY_SETTINGS
from tests.serving.pipeline.engines import CONFIG, TWO_STAGES, engine, params_of, parts, tokens

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11]]


@pytest.fixture(scope="module")
def expected():
    with engine() as one:
        return tokens(one.generate(PROMPTS, GREEDY, use_tqdm=False))


def test_a_step_that_raises_loses_no_token(expected, monkeypatch):
    with engine(**TWO_STAGES) as llm:
        runner = parts(llm).runner
        fetch, calls = runner.fetch, []

        def faulty(step):
            calls.append(step)
            if len(calls) == 5:
                raise RuntimeError("the second stage is gone")
            return fetch(step)

        monkeypatch.setattr(runner, "fetch", faulty)
        assert tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == expected
        assert len(calls) > 5
        parts(llm).scheduler.check_invariants()


def test_streams_of_an_engine_that_serves(expected):
    options = {**TINY_SETTINGS, "params": params_of(CONFIG), "config": CONFIG, "online": True}

    async def answer(llm, prompt):
        async for output in llm.generate(prompt, GREEDY):
            last = output
        return last

    async def run():
        async with AsyncLLM(**options, **TWO_STAGES) as llm:
            return await asyncio.gather(*(answer(llm, prompt) for prompt in PROMPTS))

    assert [[o.outputs[0].token_ids] for o in asyncio.run(run())] == expected


@pytest.mark.slow
def test_grammars_hold_in_every_stage():
    options = {"max_model_len": 128, "max_num_seqs": 4, "num_kv_blocks": 65}
    options |= {"compile_ahead": False, "show_progress": False, "max_num_batched_tokens": 128}
    grammar = StructuredOutputsParams(regex="[a-d]{4,9}!")
    params = SamplingParams(seed=3, max_tokens=16, structured_outputs=grammar)
    plain = SamplingParams(temperature=0.0, max_tokens=12)
    prompts = ["Once upon a time", "The cat", "One day", "She said"]
    mixed = [params, plain, params, plain]
    with LLM(**options, num_decode_steps=1) as one:
        wanted = [each.outputs[0].text for each in one.generate(prompts, mixed, use_tqdm=False)]
    with LLM(**options, **TWO_STAGES) as llm:
        found = [each.outputs[0].text for each in llm.generate(prompts, mixed, use_tqdm=False)]
    assert found == wanted
    assert all(re.fullmatch("[a-d]{4,9}!", text) for text in found[::2])


def test_prompts_are_embedded_by_all_stages():
    with engine(runner="pooling") as one:
        expected = [each.embedding for each in one.embed(PROMPTS, use_tqdm=False)]
    with engine(runner="pooling", **TWO_STAGES) as llm:
        found = [each.embedding for each in llm.embed(PROMPTS, use_tqdm=False)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"data_parallel_size": 2}, "data_parallel_size"),
        ({"enable_expert_parallel": True}, "enable_expert_parallel"),
        ({"expert_statistics": True}, "expert_statistics"),
        ({"enable_lora": True}, "enable_lora"),
        ({"speculative_config": {"method": "ngram"}}, "speculative_config"),
        ({"kv_offloading_size": 1.0}, "kv_offloading_size"),
        ({"preemption_mode": "swap", "swap_space": 1.0}, "preemption_mode='swap'"),
        ({"num_decode_steps": 4}, "num_decode_steps"),
        ({"eager": True}, "eager"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_pipeline_has_not_is_refused_in_a_line(options, named):
    wanted = f"^pipeline_parallel_size and {named} exclude each other; leave one out$"
    with pytest.raises(ValueError, match=wanted):
        EngineConfig(pipeline_parallel_size=2, **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"pipeline_parallel_size": 5}, r"5 is more than the model's 4 layers; .* work: 1 to 4$"),
        (
            {"pipeline_parallel_size": 4, "tensor_parallel_size": 4},
            "4 x tensor_parallel_size 4 needs 16 devices, and there are 8 cpu",
        ),
        ({**TWO_STAGES, "tensor_parallel_size": 3}, "sizes that work: 1, 2, 4, 8"),
        ({**TWO_STAGES, "mesh": make_mesh(2)}, "leave mesh out"),
        ({**TWO_STAGES, "capture": Capture((0,))}, "capture does not go with pipeline_parallel"),
    ],
)
def test_sizes_that_do_not_work_are_refused_in_a_line(options, named):
    with pytest.raises(ValueError, match=named) as refused:
        engine(**options)
    assert "\n" not in str(refused.value)
