"""`LLM(runner="pooling")`: prompts alone are read, by the same programs, and nothing generates."""

import asyncio

import pytest

from jaxinfer import AsyncLLM, BeamSearchParams, SamplingParams
from jaxinfer.serving.programs.kinds.block_rows import BlockRowsKey
from jaxinfer.serving.programs.layout import PrefillShape
from jaxinfer.serving.programs.program_set import all_programs, largest_programs
from jaxinfer.testing import TINY_CONFIG, TINY_SETTINGS
from tests.serving.small_llm import PROMPTS, small_llm, small_params

LABELS = ["b", " the", "!"]
LONG = [1 + i % 50 for i in range(60)]
FIX = "runner='pooling'.*start it with runner='generate'"


@pytest.fixture(scope="module")
def pooling(tokenizer):
    with small_llm(tokenizer=tokenizer, runner="pooling") as llm:
        yield llm


def programs(llm, *, swaps=False):
    return all_programs(llm._loaded.replicas[0].runner._buckets, swaps=swaps)


def test_its_programs_are_prefills_alone(pooling, llm):
    assert {type(key) for key in programs(pooling)} == {PrefillShape}
    assert {type(key) for key in programs(pooling, swaps=True)} == {PrefillShape, BlockRowsKey}
    assert not any(key.all_tokens for key in programs(pooling))
    plain = [k for k in programs(llm) if isinstance(k, PrefillShape) and not k.all_tokens]
    assert programs(pooling) == plain
    assert len({type(key) for key in programs(llm)}) > 6
    plan = pooling._loaded.replicas[0].runner._plan
    largest = largest_programs(plan.buckets, plan.programs.context.kernels)
    assert largest == [max(programs(pooling), key=lambda key: (key.tokens, key.rows))]


def test_it_compiles_these_alone(tokenizer):
    with small_llm(tokenizer=tokenizer, runner="pooling", compile_ahead=True) as llm:
        compiled = llm._loaded.replicas[0].runner._compiled
        assert set(compiled) == set(programs(llm))
        llm.embed([LONG, *PROMPTS])
        llm.decide(PROMPTS, LABELS)
        assert set(compiled) == set(programs(llm))


def test_it_keeps_no_state_of_samplers(pooling, llm):
    runner = pooling._loaded.replicas[0].runner
    pooling.embed(PROMPTS)
    assert runner.resident.slots is None
    assert runner.resident.last_tokens is not None
    token_counts = (TINY_SETTINGS["max_num_seqs"] + 1) * TINY_CONFIG.vocab_size * 4
    assert runner.memory.held.slots < token_counts
    assert llm._loaded.replicas[0].runner.memory.held.slots > token_counts


def test_progress_is_that_of_prompts(pooling, llm):
    shown = []

    class Bar:
        def __init__(self, total, desc):
            assert total == len(PROMPTS)

        def set_postfix_str(self, text, refresh):
            shown.append(text)

        def update(self, count):
            pass

        def close(self):
            pass

    pooling.embed(PROMPTS, use_tqdm=Bar)
    assert shown
    assert all(text.endswith(" prompt tok/s") for text in shown)
    assert not any(text.startswith("0 ") for text in shown)


@pytest.mark.parametrize("prompts", [PROMPTS, [LONG, *PROMPTS]], ids=["short", "chunks"])
def test_answers_are_those_of_an_engine_that_generates(pooling, llm, prompts):
    for each in (pooling, llm):
        each.reset_prefix_cache()
    for one, other in zip(pooling.embed(prompts), llm.embed(prompts), strict=True):
        assert one.embedding.tobytes() == other.embedding.tobytes()
    assert pooling.decide(prompts, LABELS) == llm.decide(prompts, LABELS)
    assert pooling.classify(prompts, LABELS) == llm.classify(prompts, LABELS)


def test_documents_are_ranked_and_pairs_scored_the_same(tokenizer):
    settings = {"tokenizer": tokenizer, "max_model_len": 256}
    documents = ["The capital of China is Beijing.", "A fox."]
    with small_llm(**settings, runner="pooling") as pooling, small_llm(**settings) as llm:
        assert pooling.rerank("China?", documents) == llm.rerank("China?", documents)
        assert pooling.score("China?", documents) == llm.score("China?", documents)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate(PROMPTS),
        lambda llm: llm.chat([{"role": "user", "content": "Hi"}]),
        lambda llm: llm.beam_search(PROMPTS, BeamSearchParams(beam_width=2, max_tokens=2)),
        lambda llm: llm.rollout(PROMPTS),
        lambda llm: llm.stream(PROMPTS[0]),
        lambda llm: llm.astream(PROMPTS[0]),
        lambda llm: llm.score(PROMPTS),
        lambda llm: llm.add_request("name", PROMPTS[0]),
    ],
    ids=["generate", "chat", "beam_search", "rollout", "stream", "astream", "score", "add_request"],
)
def test_what_generates_is_refused(pooling, call):
    with pytest.raises(ValueError, match=FIX):
        call(pooling)


def test_an_asynchronous_engine_refuses_it_too(tokenizer):
    async def run():
        model = {"params": small_params(), "config": TINY_CONFIG, "tokenizer": tokenizer}
        async with AsyncLLM(**model, **TINY_SETTINGS, runner="pooling") as engine:
            for options in ({}, {"prefill_only": True}):
                with pytest.raises(ValueError, match=FIX):
                    engine.generate(PROMPTS[0], **options)
            scored = SamplingParams(prompt_logprobs=0)
            with pytest.raises(ValueError, match=FIX):
                engine.generate(PROMPTS[0], scored, pooled=True)
            (found,) = await engine.embed(PROMPTS[0])
            assert found.token_ids == PROMPTS[0]
            return await engine.judge.decide(PROMPTS, LABELS)

    decisions = asyncio.run(run())
    assert [found.prompt_token_ids for found in decisions] == PROMPTS


def test_weights_are_swapped_and_it_sleeps_and_wakes(tokenizer):
    with small_llm(tokenizer=tokenizer, runner="pooling") as llm:
        before = llm.decide(PROMPTS, LABELS)
        llm.sleep(1)
        llm.wake_up()
        assert llm.decide(PROMPTS, LABELS) == before


def test_replicas_pool(tokenizer, pooling):
    with small_llm(tokenizer=tokenizer, runner="pooling", data_parallel_size=2) as llm:
        for one, other in zip(
            llm.decide(PROMPTS, LABELS), pooling.decide(PROMPTS, LABELS), strict=True
        ):
            assert one.label == other.label


def test_a_runner_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="runner must be one of generate, pooling, got 'embed'"):
        small_llm(runner="embed")
