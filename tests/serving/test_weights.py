"""Both doors swap weights through one part; `update_params` is its name on them."""

import asyncio

import pytest

from jaxinfer import AsyncLLM
from tests.rollouts import trainers
from tests.serving.small_llm import CONFIG, GREEDY, PROMPTS, ids, small_llm, small_params


def _answers(llm):
    return ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))


def test_the_part_swaps_weights_and_counts_the_swaps():
    with small_llm() as llm:
        before = _answers(llm)
        llm.weights.update(trainers.other_params(), in_flight="wait")
        assert _answers(llm) != before
        llm.update_params(small_params())
        assert _answers(llm) == before
        assert llm.weights.version == llm.weight_version == 2
        with pytest.raises(ValueError, match="in_flight must be 'keep', 'wait' or 'abort'"):
            llm.weights.update(small_params(), in_flight="later")
    with pytest.raises(RuntimeError, match="this LLM is closed"):
        llm.weights.update({})


def test_an_asynchronous_engine_has_the_same_part():
    async def main():
        options = {"max_model_len": 64, "max_num_seqs": 4, "num_kv_blocks": 65}
        options |= {"compile_ahead": False, "show_progress": False}
        async with AsyncLLM(params=small_params(), config=CONFIG, **options) as engine:
            await engine.weights.update_async(trainers.other_params())
            return engine.weights.version

    assert asyncio.run(main()) == 1
