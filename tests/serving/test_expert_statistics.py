"""An engine counts the tokens through each expert as a plain forward pass does."""

import asyncio
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, AsyncLLM, EngineConfig, SamplingParams
from jaxinfer.evaluation.experts import text_loads
from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.kernels.experts.load import expert_load
from jaxinfer.model.draft_head.weights import save_draft_head
from jaxinfer.model.experts import Experts
from jaxinfer.serving.programs.counted_experts import CountedExperts, add, counts_of
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.programs.speculative.watched_layers import WatchedLayers
from jaxinfer.serving.recording.expert_use import counts_on_host
from jaxinfer.serving.runner.ahead_of_time import run_warm
from tests.model import tiny
from tests.model.draft_head.random_head import head_config, random_head
from tests.serving.always_draft import always_draft
from tests.serving.small_llm import held_blocks

X, K = 6, 2
CONFIG = tiny.config(
    model_type="qwen3_moe", num_hidden_layers=3, experts=Experts(X, K, 16, dense_layers=(1,))
)
PROMPTS = [[1, 2, 3], [4, 5], list(range(10, 27)), [7] * 9]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SMALL = {
    "max_model_len": 64,
    "num_kv_blocks": 65,
    "max_num_seqs": 4,
    "num_decode_steps": 1,
    "block_size": 8,
    "enable_prefix_caching": False,
    "compile_ahead": False,
    "show_progress": False,
}


@pytest.fixture(scope="module")
def params():
    return tiny.params(CONFIG)


def engine(params, dtype="float32", kind=LLM, **options):
    placed = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    counting = {"expert_statistics": True}
    return kind(params=placed, config=CONFIG, dtype=dtype, **(SMALL | counting | options))


def sequences(outputs):
    """What was fed: all but the last token."""
    return [each.prompt_token_ids + each.outputs[0].token_ids[:-1] for each in outputs]


def forward_loads(params, texts):
    """Tokens through each expert, ``[2, X]``, by `forward`."""
    total = np.zeros((2, X), np.int64)
    for text in texts:
        padded = np.zeros(64, np.int32)
        padded[: len(text)] = text
        total += np.asarray(text_loads(params, CONFIG, jnp.asarray(padded), jnp.int32(len(text))))
    return total


def expected(params, outputs):
    """Of the last layer's, tokens of a prompt but its last count nowhere."""
    fed = sequences(outputs)
    load = forward_loads(params, fed)
    prompts = [each.prompt_token_ids[:-1] for each in outputs]
    load[1] -= forward_loads(params, prompts)[1]
    return load


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"num_decode_steps": 4}, marks=pytest.mark.exhaustive),
        {"tensor_parallel_size": 2, "num_decode_steps": 4},
        pytest.param({"data_parallel_size": 2}, marks=pytest.mark.slow),
        pytest.param({"block_size": 16, "max_num_seqs": 2}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_the_load_is_that_of_a_plain_forward(params, options):
    with engine(params, **options) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        found = llm.expert_statistics()
    assert found.layers == (0, 2)
    np.testing.assert_array_equal(found.load, expected(params, outputs))
    assert found.load.dtype == np.int64
    if "data_parallel_size" not in options and "max_num_seqs" not in options:
        assert found.steps == 1 + 5
    assert (found.num_distinct <= found.steps * X).all()
    assert (found.distinct >= K).all()


def test_one_sequence_goes_through_as_many_experts_a_step_as_a_token_chooses(params):
    with engine(params, num_decode_steps=4) as llm:
        llm.generate([[5]], GREEDY, use_tqdm=False)
        found = llm.expert_statistics()
    assert found.steps == 6
    assert found.num_distinct.tolist() == [6 * K] * 2
    assert found.load.sum(axis=1).tolist() == [6 * K] * 2


def test_in_bfloat16_every_token_counts_too(params):
    with engine(params, "bfloat16", num_decode_steps=4) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        found = llm.expert_statistics()
    fed = sum(map(len, sequences(outputs)))
    assert found.load.sum(axis=1).tolist() == [K * fed, K * len(PROMPTS) * 6]


def test_parts_of_prompts_count_once_and_cached_ones_nowhere(params):
    with engine(params, max_num_batched_tokens=8, enable_prefix_caching=True) as llm:
        prompt = list(range(20, 41))
        first = llm.generate([prompt], GREEDY, use_tqdm=False)
        alone = llm.expert_statistics(reset=True)
        again = llm.generate([prompt], GREEDY, use_tqdm=False)
        cached = llm.expert_statistics()
    np.testing.assert_array_equal(alone.load[0], forward_loads(params, sequences(first))[0])
    assert again[0].num_cached_tokens == 16
    assert cached.load[0].sum() == alone.load[0].sum() - K * 16


def test_a_reset_begins_at_zero_and_metrics_go_on(params):
    with engine(params) as llm:
        assert llm.expert_statistics().imbalance.tolist() == [0, 0]
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        first = llm.expert_statistics(reset=True)
        assert llm.expert_statistics().steps == 0
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        second = llm.expert_statistics()
        metrics = [m for m in llm.get_metrics() if "expert" in m.name]
        shown = {(m.name, m.labels.get("layer")): m.value for m in metrics}
    np.testing.assert_array_equal(second.load, first.load)
    assert shown["jaxinfer:expert_steps", None] == 12
    for row, layer in enumerate(("0", "2")):
        assert shown["jaxinfer:expert_tokens", layer] == 2 * first.load[row].sum()
        assert shown["jaxinfer:expert_distinct", layer] == 2 * first.num_distinct[row]
        assert shown["jaxinfer:expert_imbalance", layer] == pytest.approx(first.imbalance[row])


def test_tasks_of_an_event_loop_may_ask(params):
    async def main():
        async with engine(params, kind=AsyncLLM) as llm:
            async for _ in llm.generate({"prompt_token_ids": [5]}, GREEDY):
                pass
            return await llm.expert_statistics(reset=True), await llm.expert_statistics()

    found, after = asyncio.run(main())
    assert (found.steps, after.steps) == (6, 0)


def test_an_engine_that_counts_nothing_says_so_and_keeps_nothing(params):
    with engine(params, expert_statistics=False) as llm:
        with pytest.raises(ValueError, match="make it with expert_statistics=True"):
            llm.expert_statistics()
        assert not any("expert" in metric.name for metric in llm.get_metrics())
        assert len(llm._loaded.replicas[0].runner.resident.kv) == CONFIG.num_hidden_layers


def test_a_dense_model_is_refused_in_one_line():
    dense = tiny.config()
    with pytest.raises(ValueError, match=r"^expert_statistics .* this qwen3 model has none"):
        LLM(params=tiny.params(dense), config=dense, expert_statistics=True)


def test_what_was_counted_outlives_a_sleep(params):
    with engine(params) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        before = llm.expert_statistics()
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        llm.sleep(level=1)
        asleep = llm.expert_statistics()
        llm.wake_up()
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        after = llm.expert_statistics()
    np.testing.assert_array_equal(asleep.load, 2 * before.load)
    np.testing.assert_array_equal(after.load, 3 * before.load)
    assert after.steps == 3 * before.steps


def test_what_was_read_outlives_a_step_that_fails(params, monkeypatch):
    with engine(params) as llm:
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        before = llm.expert_statistics()
        runner = llm._loaded.replicas[0].runner
        fetch, failed = runner.fetch, []

        def fail_once(step):
            if failed:
                return fetch(step)
            failed.append(step)
            fetch(step)
            for leaf in jax.tree.leaves(runner.resident.kv):
                leaf.delete()
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(runner, "fetch", fail_once)
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        after = llm.expert_statistics()
    assert failed
    assert [each.error for each in outputs] == [None] * len(PROMPTS)
    assert (after.load.sum(axis=1) > before.load.sum(axis=1)).all()
    assert after.steps >= before.steps + 6


LONG = [list(range(1, 30)), [3] * 40, [5, 4] * 12]


@pytest.mark.parametrize(
    "options",
    [{}, {"preemption_mode": "swap", "swap_space": 0.01}],
    ids=str,
)
def test_blocks_are_copied_around_the_counts(params, options):
    """Preempted rows come back, and samples of a prompt share its blocks until they write."""
    several = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=20, ignore_eos=True)
    found = []
    for counts in (False, True):
        with engine(params, expert_statistics=counts, **options) as llm, held_blocks(llm, 9):
            outputs = llm.generate(LONG, several, use_tqdm=False)
            assert sum(each.metrics.num_preemptions for each in outputs) > 0
            found.append([[c.token_ids for c in each.outputs] for each in outputs])
            if counts:
                assert llm.expert_statistics().load.sum() > 0
    assert found[0] == found[1]


def head_in(directory):
    """The settings of an engine with a draft head of the model."""
    dense = dataclasses.replace(CONFIG, model_type="qwen3", experts=None)
    config = head_config(dense, states=(0, 1, 2))
    save_draft_head(random_head(config), config, directory)
    return {"method": "eagle3", "model": str(directory), "num_speculative_tokens": 2}


@pytest.mark.parametrize("method", ["ngram", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_drafts_are_counted_like_other_tokens(params, method, tmp_path, monkeypatch):
    always_draft(monkeypatch)
    drafts = head_in(tmp_path) if method == "eagle3" else {"method": "ngram"}
    texts, found = [[1, 2, 3] * 5, [7] * 9], []
    for options in ({}, {"speculative_config": drafts}):
        with engine(params, **options) as llm:
            outputs = llm.generate(texts, GREEDY.clone(max_tokens=12), use_tqdm=False)
            found.append(([each.outputs[0].token_ids for each in outputs], llm.expert_statistics()))
            counts = llm._loaded.engine.counts().drafts
    (plain, without), (drafted, counted) = found
    assert plain == drafted
    assert counts.num_drafted > 0
    # Launched steps behind the end of a row feed nothing.
    fed = counted.load[0].sum() - without.load[0].sum()
    assert fed == K * (counts.num_drafted - counts.num_accepted)


def test_counts_stand_before_a_heads_pages():
    counted = CountedExperts(2, X)
    pages = type("Pages", (), {"of_token": lambda self, dtype: ("head", dtype)})()
    tally, head = WatchedLayers(pages, counted).beside("float32")
    assert isinstance(tally, Tally)
    assert head == ("head", "float32")


def test_padding_of_a_warm_up_counts_nowhere(params):
    with engine(params) as llm:
        runner = llm._loaded.replicas[0].runner
        keys = list(all_programs(runner._buckets, swaps=False))[-6:]
        keys += [runner._buckets.prefill_shapes()[0]]
        runner._plan.compiled.compile(keys, show_progress=False)
        run_warm(runner._plan, EngineConfig(), runner.launcher, keys, "the device")
        found = llm.expert_statistics()
    assert (found.steps, found.load.sum()) == (0, 0)


def test_a_load_is_counted_by_hand():
    chosen = jnp.asarray([[0, 2], [2, 1], [5, 0]], jnp.int32)
    np.testing.assert_array_equal(expert_load(chosen, None, X), [2, 1, 2, 0, 0, 1])
    is_token = jnp.asarray([True, True, False])
    np.testing.assert_array_equal(expert_load(chosen, is_token, X), [1, 1, 2, 0, 0, 0])


def test_counts_pass_32_bits():
    load = jnp.asarray([[0, 3, 5]], jnp.int32)
    step = counts_of([load[0]], jnp.asarray(True))
    np.testing.assert_array_equal(step, [[0, 3, 5, 2, 1]])
    np.testing.assert_array_equal(counts_of([load[0]], jnp.asarray(False)), np.zeros((1, 5)))
    before = jnp.full((2, 1, 5), 2**32 - 4, jnp.uint32).at[1].set(0)
    found = counts_on_host(Tally(add(before, step)))
    carried = [[2**32 - 4, 2**32 - 1, 2**32 + 1, 2**32 - 2, 2**32 - 3]]
    assert (found.tolist(), found.dtype) == (carried, np.int64)


def test_figures_are_computed_by_hand():
    load = np.array([[4, 0, 2], [0, 0, 0]])
    first = ExpertStatistics((0, 3), load, 3, np.array([4, 0]))
    assert first.imbalance.tolist() == [2, 0]
    assert first.distinct.tolist() == [pytest.approx(4 / 3), 0]
    both = first.plus(first)
    assert (both.load.tolist(), both.steps) == ((2 * load).tolist(), 6)
    left = both.since(first)
    assert (left.load.tolist(), left.num_distinct.tolist()) == (load.tolist(), [4, 0])
