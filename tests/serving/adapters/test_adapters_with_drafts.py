"""Requests with adapters in engines with drafts: they verify beside others, and stay exact."""

from dataclasses import replace

import pytest

from jaxinfer import SamplingParams
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.draft_head.weights import save_draft_head
from jaxinfer.serving.programs.kinds.speculative_decode import SpeculativeDecodeKey, WriteTextsKey
from jaxinfer.serving.programs.kinds.write_adapter import WriteAdapterKey
from jaxinfer.serving.programs.program_set import all_programs
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.speculation import DraftSize, Speculation
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN
from tests.model.draft_head.random_head import dflash_config, head_config, random_head
from tests.serving.adapters.small_adapters import matrices, tree
from tests.serving.always_draft import always_draft, begin_with_drafts
from tests.serving.requests.host_request import host_request
from tests.serving.small_llm import CONFIG, held_blocks, small_llm
from tests.serving.test_speculative import METHODS, NUM_STEPS, launched_keys, params_of

pytestmark = pytest.mark.slow

LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
PROMPTS = [
    [1, 2, 3, 4, 1, 2, 3, 4, 1, 2],
    [5, 6, 5, 6, 5],
    [9, 8, 7],
    [1, 2, 3, 4, 1, 2, 3, 4, 1, 2],
    [1, 2, 3, 4, 1, 2, 3, 4, 1, 2],
]
MIXED = ["a0", None, "a1", "a1", None]
SAMPLING = ("group", "top_p")  # those of single rows are mixed in another test
HEADS = {
    "eagle3": head_config(CONFIG, draft_vocab_size=100, norm_before_fc=True),
    "dflash": dflash_config(CONFIG, states=(0, 1)),
}


def engine(**options):
    """With two adapters."""
    llm = small_llm(**LORA, **options)
    for seed in range(2):
        llm.load_adapter(f"a{seed}", tree(matrices(seed)), scale=0.5)
    return llm


@pytest.fixture(scope="module")
def plain():
    with engine() as llm:
        yield llm


@pytest.fixture(scope="module", params=METHODS)
def drafting(request):
    steps = NUM_STEPS[request.param]
    with (
        pytest.MonkeyPatch.context() as patch,
        engine(speculative_config=METHODS[request.param], num_decode_steps=steps) as llm,
    ):
        begin_with_drafts(patch)
        yield llm


def answers(llm, sampling, adapters=MIXED, prompts=PROMPTS):
    """Of all prompts at once: tokens and reasons."""
    outputs = llm.generate(prompts, sampling, use_tqdm=False, lora_request=adapters)
    return [
        (each.token_ids, each.finish_reason, each.stop_reason)
        for output in outputs
        for each in output.outputs
    ]


def reads_adapters(key):
    return SLOT_OF_TOKEN in key.shape.extra


@pytest.mark.parametrize("name", SAMPLING)
def test_drafts_change_no_answer_of_a_mixed_batch(plain, drafting, name):
    expected = answers(plain, params_of(name))
    for _ in range(2):  # the second time earlier answers are there to draft from
        assert answers(drafting, params_of(name)) == expected


def test_rows_sampled_in_all_ways_change_no_answer(plain, drafting):
    names = ("greedy", "penalty", "top_p", "temperature", "logprobs")
    sampling = [params_of(name) for name in names]
    for adapters in (MIXED, MIXED[::-1]):
        assert answers(drafting, sampling, adapters) == answers(plain, sampling, adapters)


def test_requests_with_an_adapter_verify_beside_others(drafting):
    params, found = params_of("greedy", max_tokens=40), []
    prompts, adapters = [PROMPTS[0]] * 3, ["a0", None, "a1"]

    def ask(adapters):
        found[:] = drafting.generate(prompts, params, use_tqdm=False, lora_request=adapters)

    keys = launched_keys(drafting, lambda: ask(adapters))
    steps = [key for key in keys if isinstance(key, SpeculativeDecodeKey)]
    assert steps
    assert reads_adapters(steps[0])
    for output in found:
        assert output.metrics.num_accepted_tokens >= 5
    keys = launched_keys(drafting, lambda: ask(None))
    steps = [key for key in keys if isinstance(key, SpeculativeDecodeKey)]
    assert steps
    assert not any(map(reads_adapters, steps))  # the programs of an engine without adapters


def test_few_blocks_change_no_answer(plain, drafting):
    sampling = [params_of(name) for name in ("greedy", "top_p", "penalty", "temperature")]
    sampling.append(params_of("greedy"))
    expected = answers(plain, sampling)
    with held_blocks(drafting, 7):
        drafting.reset_prefix_cache()
        scheduler = drafting._loaded.replicas[0].scheduler
        before = scheduler.num_preemptions
        assert answers(drafting, sampling) == expected
        assert scheduler.num_preemptions > before
    scheduler.check_invariants()


def test_a_request_keeps_its_version_while_it_drafts(plain, drafting):
    found = []
    for llm in (plain, drafting):
        llm.load_adapter("moving", tree(matrices(0)), scale=0.5)
        params = params_of("greedy")
        stream = llm.stream(PROMPTS[0], params, lora_request="moving")
        tokens = list(next(stream).outputs[0].token_ids)
        llm.update_adapter("moving", tree(matrices(1)), scale=0.5)
        new = answers(llm, params, ["moving", None], PROMPTS[:2])
        for output in stream:
            tokens += output.outputs[0].token_ids
        llm.unload_adapter("moving")
        found.append((tokens, new))
    assert found[0] == found[1]
    alone = answers(plain, params_of("greedy"), ["a0", "a1"], [PROMPTS[0]] * 2)
    assert found[1][0] == alone[0][0]
    assert found[1][1][0] == alone[1]


def test_more_adapters_than_slots_change_no_answer(plain, drafting):
    for llm in (plain, drafting):
        llm.load_adapter("a2", tree(matrices(2)), scale=0.5)
    adapters = ["a0", "a1", "a2", None, "a2"]
    expected, found = (answers(llm, params_of("greedy"), adapters) for llm in (plain, drafting))
    for llm in (plain, drafting):
        llm.unload_adapter("a2")
    assert found == expected


@pytest.mark.parametrize("method", ["dflash", pytest.param("eagle3", marks=pytest.mark.exhaustive)])
def test_heads_draft_for_adapted_layers(plain, method, tmp_path, monkeypatch):
    always_draft(monkeypatch)
    save_draft_head(random_head(HEADS[method]), HEADS[method], tmp_path)
    config = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 4}
    sampling = [params_of(name) for name in ("greedy", "penalty", "top_p", "temperature", "greedy")]
    with engine(speculative_config=config) as llm:
        found = []
        keys = launched_keys(llm, lambda: found.append(answers(llm, sampling)))
        assert any(isinstance(key, SpeculativeDecodeKey) and reads_adapters(key) for key in keys)
        found.append(answers(llm, sampling))  # with cached prefixes
    assert found == [answers(plain, sampling)] * 2


@pytest.mark.exhaustive
def test_two_devices_verify_the_same_tokens(plain):
    sampling = params_of("top_p")
    with engine(speculative_config=METHODS["ngram"], tensor_parallel_size=2) as llm:
        found = answers(llm, sampling)
    assert found == answers(plain, sampling)


@pytest.mark.parametrize("method", METHODS)
def test_each_step_with_drafts_has_two_programs(method):
    options = {"speculative_config": METHODS[method], "num_decode_steps": NUM_STEPS[method]}
    with small_llm(**options) as alone, small_llm(**LORA, **options) as both:
        alone, both = (
            all_programs(llm._loaded.replicas[0].runner._buckets, swaps=False)
            for llm in (alone, both)
        )
    of_steps = [key for key in alone if isinstance(key, SpeculativeDecodeKey)]
    assert set(of_steps) < set(both)
    adapted = [key for key in both if isinstance(key, SpeculativeDecodeKey) and reads_adapters(key)]
    assert len(adapted) == len(of_steps)
    assert sum(isinstance(key, WriteTextsKey) for key in both) == 1
    assert WriteAdapterKey() in both


@pytest.mark.exhaustive
def test_no_request_waits_for_a_program():
    with engine(speculative_config=METHODS["ngram"], compile_ahead=True) as llm:
        runner = llm._loaded.replicas[0].runner
        before = runner.num_compilations
        for adapters in (MIXED, None, "a1"):
            answers(llm, params_of("top_p"), adapters)
            answers(llm, params_of("greedy"), adapters)
        assert runner.num_compilations == before
        assert runner.seconds_waited_for_programs == 0


def test_who_waits_for_a_slot_does_not_end_the_drafts_of_others():
    scheduler = Scheduler(
        BlockPool(64, 16, True),
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        speculation=Speculation([DraftSize(4, 3)]),
        num_adapter_slots=1,
    )
    for name in "ab":
        request = host_request(name, [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=40))
        adapter = Adapter(name, ord(name), None, {})
        request.new = replace(request.new, prompt=replace(request.new.prompt, adapter=adapter))
        scheduler.add(request)
    first = scheduler.schedule()
    assert [request.request_id for request in first.admitted] == ["a"]
    scheduler.update(first, [[5]], [1])
    for _ in range(4):
        step = scheduler.schedule()
        assert step.num_drafts == 3
        scheduler.update(step, [[5, 6, 7, 8]], [4], [[(3, 4)]])
    scheduler.abort("a")
    assert [request.request_id for request in scheduler.schedule().admitted] == ["b"]
    scheduler.check_invariants()
