"""New weights in a running engine: whose arrays they are, what compiles, what runs meanwhile."""

import asyncio

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxinfer import ParamsMapping, ShardingRules, save_params
from jaxinfer.errors import StepError
from jaxinfer.rollouts import conversion
from tests.rollouts import trainers
from tests.serving.small_llm import (
    CONFIG,
    GREEDY,
    PROMPTS,
    ids,
    small_async_llm,
    small_llm,
    small_params,
)

TUNIX = ParamsMapping.tunix_qwen3(CONFIG)
OTHER = trainers.other_params()
LONG = GREEDY.clone(max_tokens=20)


def used(llm, replica=0):
    return jax.tree.leaves(llm._loaded.replicas[replica].runner.resident.params)


def pointers(leaves):
    return [s.data.unsafe_buffer_pointer() for x in leaves for s in x.addressable_shards]


def answers(llm):
    return ids(llm.generate(PROMPTS, GREEDY, use_tqdm=False))


def roll_out(llm):
    return llm.rollout(PROMPTS, GREEDY, n=2, pad_to=(32, GREEDY.max_tokens))


@pytest.fixture(scope="module")
def before():
    with small_llm() as llm:
        return answers(llm)


@pytest.fixture(scope="module")
def expected():
    with small_llm(params=OTHER) as llm:
        return answers(llm)


@pytest.fixture
def llm():
    with small_llm() as llm:
        yield llm


@pytest.mark.parametrize("options", [{}, {"tensor_parallel_size": 2}])
def test_a_mapped_tree_starts_an_engine_and_updates_it(before, expected, options):
    start = {"params": trainers.tunix(small_params()), "mapping": TUNIX}
    with small_llm(**start, **options) as llm:
        assert answers(llm) == before
        llm.update_params(trainers.tunix(OTHER), TUNIX)
        assert answers(llm) == expected


def test_each_replica_has_the_mapped_weights():
    """Without a step, which each device would compile; replicas answer in the tests of meshes."""

    def check(expected):
        for replica in (0, 1):
            for mine, leaf in zip(used(llm, replica), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(mine, leaf)

    start = {"params": trainers.tunix(small_params()), "mapping": TUNIX}
    with small_llm(**start, data_parallel_size=2) as llm:
        check(small_params())
        llm.update_params(trainers.tunix(OTHER), TUNIX)
        check(OTHER)


def test_any_tree_starts_an_engine_and_updates_it(expected):
    with small_llm(params={"params": OTHER}) as llm:
        assert answers(llm) == expected
        llm.update_params({"params": {"model": OTHER["model"], "lm_head": OTHER["lm_head"]}})
        assert answers(llm) == expected


def test_other_names_without_a_mapping_are_told_of_it():
    with pytest.raises(ValueError, match=r"params lack model\.norm; .* needs mapping="):
        small_llm(params=trainers.tunix(OTHER))


def test_only_what_the_engine_made_is_donated(llm, expected):
    """The engine begins with the caller's arrays, which must live on."""
    held = trainers.tunix(OTHER)
    llm.update_params(held, TUNIX)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((small_params(), held)))
    first = used(llm)
    places = pointers(first)
    llm.update_params(held, TUNIX)
    assert all(leaf.is_deleted() for leaf in first)
    assert pointers(used(llm)) == places
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves((small_params(), held)))
    assert answers(llm) == expected
    assert llm.weight_version == 2


def test_arrays_used_as_they_are_are_never_donated(llm, expected):
    llm.update_params(OTHER)
    llm.update_params(trainers.tunix(small_params()), TUNIX)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(OTHER))
    llm.update_params(OTHER)
    assert answers(llm) == expected


def test_a_mapped_update_is_a_copy_even_where_nothing_changes(llm):
    mine = jax.tree.map(lambda leaf: leaf + 0, OTHER)
    llm.update_params(mine, ParamsMapping.hugging_face(CONFIG))
    assert not {*pointers(used(llm))} & {*pointers(jax.tree.leaves(mine))}
    before = answers(llm)
    for leaf in jax.tree.leaves(mine):
        leaf.delete()
    assert answers(llm) == before


def test_weights_of_host_memory_are_mapped(llm, expected):
    llm.update_params(jax.tree.map(np.asarray, trainers.tunix(OTHER)), TUNIX)
    assert answers(llm) == expected


def test_a_second_update_compiles_nothing(llm):
    conversion._program.cache_clear()  # what other tests have compiled
    held = [trainers.tunix(tree) for tree in (small_params(), OTHER)]
    roll_out(llm)
    before = llm.num_compilations
    llm.update_params(held[0], TUNIX)
    count = llm.num_compilations
    assert count > before
    for i in range(3):
        llm.update_params(held[i % 2], ParamsMapping.tunix_qwen3(CONFIG))
        assert set(roll_out(llm).weight_versions) == {i + 2}
    assert llm.num_compilations == count


def test_a_tree_that_does_not_fit_changes_nothing(llm):
    before = answers(llm)
    wrong = trainers.tunix(OTHER)
    wrong["final_norm"]["w"] = np.ones(3, np.float32)
    llm.add_request("a", PROMPTS[0], GREEDY)
    with pytest.raises(ValueError, match=r"final_norm\.w\], \(3,\), becomes \(3,\), not model"):
        llm.update_params(wrong, TUNIX, in_flight="abort")
    with pytest.raises(ValueError, match=r"params lack lm_head, which must be float32\[512, 32\]"):
        llm.update_params({"model": OTHER["model"]}, in_flight="abort")
    with pytest.raises(ValueError, match="in_flight must be 'keep', 'wait' or 'abort', got 'stop'"):
        llm.update_params(OTHER, in_flight="stop")
    with pytest.raises(TypeError, match="mapping must be a ParamsMapping, got function"):
        llm.update_params(OTHER, lambda config: TUNIX)
    assert llm.has_unfinished_requests()
    llm.abort_request("a")
    assert answers(llm) == before
    assert llm.weight_version == 0


def run_across_an_update(llm, in_flight):
    """Outputs of a request that runs while the weights change, and tokens it had before that."""
    (alone,) = llm.generate([PROMPTS[0]], LONG, use_tqdm=False)
    llm.reset_prefix_cache()
    llm.add_request("a", PROMPTS[0], LONG)
    outputs = []
    while not outputs:
        outputs += llm.step()
    llm.update_params(OTHER, in_flight=in_flight)
    while llm.has_unfinished_requests():
        outputs += llm.step()
    return outputs, alone.outputs[0].token_ids


def test_running_requests_go_on_with_the_new_weights(llm):
    outputs, alone = run_across_an_update(llm, "keep")
    assert outputs[0].weight_version == 0
    assert outputs[-1].weight_version == outputs[-1].outputs[0].weight_version == 1
    tokens = outputs[-1].outputs[0].token_ids
    assert len(tokens) == len(alone)
    assert tokens != alone
    assert tokens[:1] == alone[:1]


def test_running_requests_end_first_with_wait(llm):
    outputs, alone = run_across_an_update(llm, "wait")
    assert outputs[-1].finished
    assert outputs[-1].weight_version == 0
    assert outputs[-1].outputs[0].token_ids == alone
    assert llm.generate([PROMPTS[0]], GREEDY, use_tqdm=False)[0].weight_version == 1


def test_running_requests_are_ended_with_abort(llm):
    outputs, alone = run_across_an_update(llm, "abort")
    assert outputs[-1].outputs[0].finish_reason == "abort"
    assert outputs[-1].weight_version == 0
    tokens = outputs[-1].outputs[0].token_ids
    assert tokens == alone[: len(tokens)]
    assert len(tokens) < len(alone)


def test_an_asynchronous_engine_takes_new_weights():
    async def main():
        async with small_async_llm() as engine:
            await engine.update_params(trainers.tunix(OTHER), TUNIX, in_flight="wait")
            outputs = [output async for output in engine.generate(PROMPTS[0], GREEDY)]
            return engine.weight_version, outputs[-1]

    version, output = asyncio.run(main())
    assert version == output.weight_version == 1


def test_weights_of_files_are_the_engines_own(tmp_path):
    """Their memory is given to the first mapped update."""
    save_params(small_params(), CONFIG, tmp_path)
    with small_llm(params=None, config=None, model=tmp_path, skip_tokenizer_init=True) as llm:
        before = used(llm)
        llm.update_params(trainers.tunix(OTHER), TUNIX)
        assert all(leaf.is_deleted() for leaf in before)
        assert answers(llm)


def test_weights_lost_in_writing_end_the_engine(llm, monkeypatch):
    held = trainers.tunix(OTHER)
    llm.update_params(held, TUNIX)

    def fail(program):
        def run(old, sources):
            program(old, sources)
            raise RuntimeError("RESOURCE_EXHAUSTED")

        return run

    program = conversion._program
    monkeypatch.setattr(conversion, "_program", lambda *key: fail(program(*key)))
    with pytest.raises(StepError, match="lost while being written: RESOURCE_EXHAUSTED"):
        llm.update_params(held, TUNIX)
    with pytest.raises(StepError, match="make a new LLM"):
        answers(llm)


def test_a_mapping_goes_with_params():
    with pytest.raises(ValueError, match="mapping goes with params"):
        small_llm(params=None, config=None, mapping=TUNIX)


@pytest.mark.parametrize("data", ["fsdp", None])
def test_a_trainers_mesh_and_shardings_are_taken(before, expected, data):
    """With its axis for data, replicas run on its slices; without, one engine on all of it."""
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("fsdp", "tp"), axis_types=(AxisType.Auto,) * 2)

    def split(leaf):
        axes = ("fsdp", "tp") if leaf.ndim > 1 else ("fsdp",)
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*axes)))

    axes = dict.fromkeys(("vocab", "heads", "kv_heads", "intermediate"), "tp")
    rules = ShardingRules(**axes, data=data)
    first = jax.tree.map(split, trainers.tunix(small_params()))
    with small_llm(params=first, mapping=TUNIX, rules=rules) as llm:
        assert len(llm._loaded.replicas) == (2 if data else 1)
        assert answers(llm) == before
        held = used(llm)
        llm.update_params(jax.tree.map(split, trainers.tunix(OTHER)), TUNIX)
        assert all(leaf.is_deleted() for leaf in held)
        assert answers(llm) == expected
