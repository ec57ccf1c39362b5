"""An `LLM` of several replicas gives what an `LLM` of one gives, token for token."""

import asyncio
import random
import signal
import threading

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxinfer import SamplingParams
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.replicas.meshes import make_replica_mesh
from jaxinfer.serving.runner.device_params import describe_params
from jaxinfer.serving.startup import loading
from tests.model.text.small_tokenizer import write_tokenizer
from tests.serving.small_llm import CONFIG, GREEDY, small_llm, small_params

# Each size compiles its own programs.
pytestmark = pytest.mark.slow

SIZES = {
    "2 replicas": {"data_parallel_size": 2},
    "3 replicas": {"data_parallel_size": 3},
    "2 x 2": {"data_parallel_size": 2, "tensor_parallel_size": 2},
}


def ragged_prompts():
    """Prompts of many lengths, several of which share a prefix longer than a block."""
    rng = random.Random(5)
    shared = [rng.randrange(512) for _ in range(33)]
    prompts = [[rng.randrange(512) for _ in range(rng.randrange(1, 40))] for _ in range(14)]
    return prompts + [[*shared[:n], rng.randrange(512)] for n in (16, 20, 32, 33, 33)]


PROMPTS = ragged_prompts()
SAMPLED = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=8, ignore_eos=True)
SEEDED = SAMPLED.clone(seed=11, n=2)


def answers(llm, params):
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def expected():
    """Greedy, unseeded and seeded answers of one engine, and scores."""
    with small_llm() as llm:
        drawn = [answers(llm, params) for params in (GREEDY, SAMPLED, SEEDED)]
        return [*drawn, [output.token_logprobs for output in llm.score(PROMPTS[1:])]]


def sized(name):
    marks = pytest.mark.exhaustive if name == "3 replicas" else ()
    return pytest.param(SIZES[name], id=name, marks=marks)


@pytest.fixture(scope="module", params=map(sized, SIZES))
def llm(request):
    with small_llm(**request.param) as llm:
        yield llm


@pytest.fixture(autouse=True)
def no_blocks_are_lost(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        assert not llm.has_unfinished_requests()
        for replica in llm._loaded.replicas:
            replica.scheduler.check_invariants()
            pool = replica.scheduler.pool
            assert pool.num_free_blocks == pool.num_usable_blocks


def test_answers_and_scores_are_those_of_one_engine(llm, expected):
    for _ in range(2):  # the second time from the prefix caches
        assert answers(llm, GREEDY) == expected[0]
    assert min(each.scheduler.pool.num_cached_blocks for each in llm._loaded.replicas) > 0
    assert answers(llm, SEEDED) == expected[2]
    scores = [output.token_logprobs for output in llm.score(PROMPTS[1:])]
    for ours, theirs in zip(scores, expected[3], strict=True):
        assert ours[0] is None
        np.testing.assert_allclose(ours[1:], theirs[1:], atol=1e-4)


def test_only_replicas_of_several_emulated_devices_share_a_thread(llm):
    count = len(llm._loaded.replicas)
    own = [each for each in threading.enumerate() if each.name.startswith("jaxinfer-replica-")]
    assert len(own) == (count if llm.report.num_devices == count else 0)


def test_seeds_that_are_drawn_are_those_of_one_engine(expected):
    with small_llm(data_parallel_size=2) as llm:
        answers(llm, GREEDY)
        assert answers(llm, SAMPLED) == expected[1]


def test_a_prompt_finds_its_prefix_in_the_replica_that_has_it(llm):
    rng = random.Random(str(id(llm)))
    prefix = [rng.randrange(512) for _ in range(32)]
    for i in range(5):
        (output,) = llm.generate([[*prefix, i]], GREEDY, use_tqdm=False)
        assert output.num_cached_tokens == (32 if i else 0)


def test_a_reset_empties_the_prefix_cache_of_every_replica(llm):
    answers(llm, GREEDY)
    pools = [replica.scheduler.pool for replica in llm._loaded.replicas]
    assert min(pool.num_cached_blocks for pool in pools) > 0
    assert llm.reset_prefix_cache()
    assert max(pool.num_cached_blocks for pool in pools) == 0


def test_streams_of_both_kinds_and_the_step_loop_go_on_side_by_side(llm):
    (expected,) = llm.generate([PROMPTS[0]], SAMPLED.clone(seed=3), use_tqdm=False)

    async def collect():
        stream = llm.astream(PROMPTS[0], SAMPLED.clone(seed=3))
        return [token async for output in stream for token in output.outputs[0].token_ids]

    async def main():
        return await asyncio.gather(*[collect() for _ in range(5)])

    llm.add_request("own", PROMPTS[0], SAMPLED.clone(seed=3))
    stream = llm.stream(PROMPTS[0], SAMPLED.clone(seed=3))
    tokens = [token for output in stream for token in output.outputs[0].token_ids]
    assert tokens == expected.outputs[0].token_ids
    assert asyncio.run(main()) == [tokens] * 5
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].outputs[0].token_ids == tokens


def test_leaving_a_stream_and_aborting_free_the_replica(llm):
    stream = llm.stream(PROMPTS[0], GREEDY.clone(max_tokens=20))
    next(stream)
    stream.close()
    llm.add_request("a", PROMPTS[1], GREEDY.clone(max_tokens=20))
    llm.step()
    llm.abort_request("a")
    assert not llm.has_unfinished_requests()


def test_an_interrupt_aborts_the_requests_of_its_call_only(llm, monkeypatch):
    llm.add_request("mine", PROMPTS[0], GREEDY)
    engine = llm._loaded.replicas[0].engine
    step, calls = engine.step, []

    def interrupted():
        if not calls:
            calls.append(step)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        step()

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, GREEDY.clone(max_tokens=20), use_tqdm=False)
    outputs = []
    while llm.has_unfinished_requests():
        outputs += llm.step()
    assert outputs[-1].request_id == "mine"
    assert outputs[-1].finished


def test_new_weights_reach_every_replica(llm):
    other = jax.tree.map(lambda x: x * 1.5, small_params())
    with small_llm(params=other) as one:
        expected = answers(one, GREEDY)
    before = answers(llm, GREEDY)
    llm.update_params(other)
    assert answers(llm, GREEDY) == expected != before
    llm.update_params(small_params())
    assert answers(llm, GREEDY) == before


def test_wrong_weights_reach_no_replica(llm):
    before = answers(llm, GREEDY)
    wrong = jax.tree.map(lambda x: x * 1.5, small_params())
    wrong["model"]["norm"] = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"model\.norm"):
        llm.update_params(wrong)
    assert answers(llm, GREEDY) == before


def test_nothing_compiles_once_shapes_have_been_met(llm):
    answers(llm, GREEDY)
    count = llm.num_compilations
    answers(llm, GREEDY)
    assert llm.num_compilations == count


def test_params_on_the_callers_mesh_with_replicas_are_used_without_a_copy(expected):
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("batch", "tensor"), axis_types=(AxisType.Auto,) * 2)
    rules = ShardingRules(data="batch")
    described = describe_params(small_params(), CONFIG, mesh, rules)

    def place():
        return jax.tree.map(
            lambda x, like: jax.device_put(x, like.sharding), small_params(), described
        )

    def buffers(trees):
        return {
            shard.data.unsafe_buffer_pointer()
            for leaf in jax.tree.leaves(trees)
            for shard in leaf.addressable_shards
        }

    def used(llm):
        return [replica.runner.resident.params for replica in llm._loaded.replicas]

    params = place()
    with small_llm(params=params, rules=rules) as llm:
        assert len(llm._loaded.replicas) == 2
        assert buffers(used(llm)) == buffers(params)
        assert answers(llm, GREEDY) == expected[0]
        again = place()
        llm.update_params(again)
        assert buffers(used(llm)) == buffers(again)
        assert answers(llm, GREEDY) == expected[0]


def test_the_report_is_of_all_replicas():
    with small_llm() as one, small_llm(data_parallel_size=2, tensor_parallel_size=2) as llm:
        assert llm.num_kv_blocks == 2 * one.num_kv_blocks
        assert llm.report.num_devices == 4
        assert "4 CPU devices in 2 replicas" in str(llm.report)
        assert llm.max_model_len == one.max_model_len


def test_all_is_compiled_ahead_for_every_replica(monkeypatch):
    def few_programs(buckets, *, swaps):
        shapes = buckets.prefill_shapes()[-1], buckets.decode_shapes()[-1]
        return [*shapes, SamplerKey(shapes[0].rows, "temperature")]

    monkeypatch.setattr("jaxinfer.serving.runner.ahead_of_time.all_programs", few_programs)
    with small_llm(data_parallel_size=2, compile_ahead=True) as llm:
        compiled = [each.runner._compiled.keys() for each in llm._loaded.replicas]
        assert len(compiled[0]) == 3
        assert compiled[0] == compiled[1]


def test_closing_frees_every_replica_and_ends_its_thread():
    llm = small_llm(data_parallel_size=2)
    llm.generate(PROMPTS[:4], GREEDY, use_tqdm=False)
    pages = [replica.runner.resident.kv[0].k for replica in llm._loaded.replicas]
    llm.close()
    assert all(page.is_deleted() for page in pages)
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxinfer-replica")]
    llm.close()


def test_more_devices_than_there_are_is_an_error():
    with pytest.raises(ValueError, match=r"5 x tensor_parallel_size 2 needs 10 devices.* are 8"):
        small_llm(data_parallel_size=5, tensor_parallel_size=2)


def test_weights_are_read_from_a_directory_once_for_all_replicas(tmp_path, monkeypatch, expected):
    save_params(small_params(), CONFIG, tmp_path)
    write_tokenizer(tmp_path)
    meshes = []
    load = loading.load_params
    monkeypatch.setattr(loading, "load_params", lambda *args: meshes.append(args[3]) or load(*args))
    with small_llm(
        params=None, config=None, model=tmp_path, data_parallel_size=2, dtype="float32"
    ) as llm:
        assert answers(llm, GREEDY) == expected[0]
    assert meshes == [make_replica_mesh(2, 1)]
