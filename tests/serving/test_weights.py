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


def test_leaves_that_are_missing_are_named_with_the_fix():
    params = small_params()
    layer = {"layers": {"0": params["model"]["layers"]["0"]}}
    with small_llm() as llm:
        for given in ({"model": {}}, {}, {"model": {"layers": {}}}):
            with pytest.raises(ValueError, match="params lack lm_head") as caught:
                llm.update_params(given)
            assert str(caught.value) == (
                "params lack lm_head, which must be float32[512, 32], and 24 more of 25 arrays: "
                "model.embed_tokens, model.layers.0.input_layernorm, ...; give all of them, or "
                "mapping=ParamsMapping(...) from the names that they have"
            )
        with pytest.raises(ValueError, match=r"layers\.1\.input_layernorm, .* and 10 more of 25"):
            llm.update_params({**params, "model": {**params["model"], **layer}})
        assert llm.weights.version == 0
