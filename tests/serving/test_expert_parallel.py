"""Experts split whole over devices change no token: each computes its own, sums do the rest."""

import asyncio
import dataclasses
import threading

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from jaxinfer import LLM, AsyncLLM, ParamsMapping, SamplingParams, ShardingRules, make_mesh
from jaxinfer.eplb_config import EplbConfig
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.experts import Experts
from jaxinfer.model.sharding import split_experts
from jaxinfer.serving import expert_balance
from jaxinfer.testing import TINY_CONFIG, TINY_SETTINGS, tiny_params

CONFIG = dataclasses.replace(
    TINY_CONFIG,
    model_type="qwen3_moe",
    num_attention_heads=8,
    intermediate_size=64,
    experts=Experts(16, 3, 16, dense_layers=(1,)),
)
PROMPTS = [[1, 2, 3], [4, 9, 5, 6], list(range(10, 27))]
GREEDY = SamplingParams(
    temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=3, prompt_logprobs=1
)
# Everything that the sampler does over the split vocabulary.
DRAWN = SamplingParams(
    temperature=0.9, top_p=0.9, frequency_penalty=0.2, seed=3, max_tokens=6, ignore_eos=True
)
SPLITS = {
    "EP2": (2, None),
    "EP4": (4, None),
    "EP8": (8, None),
    "EP2xTP2": (4, 2),
    "EP4xTP2": (8, 4),
}


def settings_of(name):
    devices, groups = SPLITS[name]
    sizes = {"tensor_parallel_size": devices, "expert_parallel_size": groups}
    return sizes | {"enable_expert_parallel": True}


def engine(kind=LLM, **options):
    options = {"params": tiny_params(CONFIG), "config": CONFIG, "num_decode_steps": 1} | options
    return kind(**(dict(TINY_SETTINGS) | options))


def answers(llm):
    """Tokens of all prompts, and the greedy ones' log-probabilities."""
    outputs = llm.generate(PROMPTS, [GREEDY, DRAWN, GREEDY], use_tqdm=False)
    tokens = [each.outputs[0].token_ids for each in outputs]
    places = [
        place
        for each in outputs
        for place in [*(each.prompt_logprobs or [])[1:], *(each.outputs[0].logprobs or [])]
    ]
    assert len(places) == 2 + 6 + 16 + 6
    return tokens, [{i: found.logprob for i, found in place.items()} for place in places]


@pytest.fixture(scope="module")
def alone():
    with engine() as llm:
        return answers(llm)


def assert_same(found, expected):
    assert found[0] == expected[0]
    for place, other in zip(found[1], expected[1], strict=True):
        assert place == pytest.approx(other, abs=1e-5)


def shares(name):
    """What `experts_of` is to be."""
    devices, groups = SPLITS[name]
    groups = groups or devices
    share = (16 // groups, 16 * groups // devices, 32)
    return [(share, 16 // groups * (i * groups // devices)) for i in range(devices)]


def params_of(llm):
    return llm._loaded.replicas[0].runner.weights.params


def experts_of(llm):
    """A leaf of experts as each device has it: its shape, and which of the experts."""
    layer = params_of(llm)["model"]["layers"]["0"]["mlp"]
    leaf = layer["experts"]["gate_proj"]
    return [(shard.data.shape, shard.index[0].start or 0) for shard in leaf.addressable_shards]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "EP2xTP2",  # EP4xTP2 is below
        "EP8",
        pytest.param("EP4", marks=pytest.mark.slow("each")),
        pytest.param("EP2", marks=pytest.mark.exhaustive),
    ],
)
def test_tokens_are_those_of_one_device(alone, name):
    with engine(**settings_of(name)) as llm:
        assert_same(answers(llm), alone)
        assert experts_of(llm) == shares(name)


def test_files_and_new_weights_reach_the_devices_that_have_the_experts(alone, tmp_path):
    save_params(tiny_params(CONFIG, seed=5), CONFIG, tmp_path)
    options = {"params": None, "config": None, "model": str(tmp_path), "skip_tokenizer_init": True}
    with engine(**options, **settings_of("EP4xTP2")) as llm:
        assert answers(llm)[0] != alone[0]
        places = jax.tree.map(lambda leaf: leaf.sharding, params_of(llm))
        llm.update_params(jax.device_put(tiny_params(CONFIG), places))
        assert_same(answers(llm), alone)
        assert experts_of(llm) == shares("EP4xTP2")


@pytest.mark.slow
def test_replicas_split_experts_over_their_own_devices(alone):
    with engine(data_parallel_size=2, **settings_of("EP2xTP2")) as llm:
        assert_same(answers(llm), alone)


@pytest.mark.slow
def test_rules_of_a_callers_own_mesh_split_experts(alone):
    mesh, rules = split_experts(make_mesh(4), ShardingRules(), 2)
    assert dict(mesh.shape) == {"expert": 2, "tensor": 2}
    with engine(mesh=mesh, rules=rules) as llm:
        assert_same(answers(llm), alone)
        assert experts_of(llm) == [((8, 8, 32), first) for first in (0, 0, 8, 8)]
        (leaf,) = {params_of(llm)["model"]["embed_tokens"].sharding.spec}
        assert leaf == jax.sharding.PartitionSpec(("expert", "tensor"))


@pytest.mark.slow
def test_a_mesh_of_one_axis_is_split_where_experts_are(alone):
    with engine(mesh=make_mesh(2), enable_expert_parallel=True) as llm:
        assert_same(answers(llm), alone)
        assert experts_of(llm) == [((8, 16, 32), first) for first in (0, 8)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"config": TINY_CONFIG}, "needs a model with experts, and this qwen3 has none"),
        ({"expert_parallel_size": 3}, "does not divide tensor_parallel_size .4.; sizes that work"),
        (
            {"config": dataclasses.replace(CONFIG, experts=Experts(6, 3, 16))},
            "expert_parallel_size 4 does not divide num_experts .6.; sizes that work with "
            "tensor_parallel_size 4: 1, 2$",
        ),
        (
            {"config": dataclasses.replace(CONFIG, experts=Experts(6, 3, 17))},
            r"does not divide num_experts \(6\); sizes that work: 1, 2$",
        ),
        (
            {
                "expert_parallel_size": 2,
                "config": dataclasses.replace(CONFIG, experts=Experts(8, 3, 17)),
            },
            r"does not leave each expert's moe_intermediate_size \(17\) a multiple of 2; "
            "sizes that work with tensor_parallel_size 4: 4$",
        ),
        ({"enable_expert_parallel": False, "expert_parallel_size": 2}, "add that, or leave"),
        (
            {"tensor_parallel_size": 1, "data_parallel_size": 2},
            "over the devices of a replica, and each replica has one",
        ),
        (
            {
                "mesh": make_mesh(4),
                "tensor_parallel_size": 1,
                "rules": ShardingRules(experts="tensor"),
            }
            | {"expert_parallel_size": 2},
            "put experts on mesh axis 'tensor', which has 4 devices; leave expert_parallel_size",
        ),
        (
            {
                "mesh": split_experts(make_mesh(4), ShardingRules(), 2)[0],
                "tensor_parallel_size": 1,
                "rules": ShardingRules(heads=("expert", "tensor"), kv_heads=("expert", "tensor")),
            },
            "can't choose among the mesh's axes 'expert', 'tensor'; name the axis of experts",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_memory_is_taken(options, said):
    asked = {"tensor_parallel_size": 4, "enable_expert_parallel": True} | options
    with pytest.raises(ValueError, match=said):
        engine(params={"model": {"norm": None}}, **asked)


def loads():
    """Tokens of each expert, of one of the two layers: the first ones are hot."""
    load = np.ones((2, 16), np.int64)
    load[0] = 1000 // np.arange(1, 17)
    return load


def logical_experts(llm):
    """The experts that the slots of the engine's tree hold, found by their weights."""
    mlp = params_of(llm)["model"]["layers"]["0"]["mlp"]
    plain = tiny_params(CONFIG)["model"]["layers"]["0"]["mlp"]["experts"]
    found = []
    for name, leaf in mlp["experts"].items():
        wanted = {np.asarray(each).tobytes(): i for i, each in enumerate(plain[name])}
        found.append([wanted[np.asarray(each).tobytes()] for each in leaf])
    assert found[0] == found[1] == found[2]
    return found[0], np.asarray(mlp["replicas"])


@pytest.mark.parametrize(
    ("name", "redundant"),
    [("EP4xTP2", 4), pytest.param("EP2", 0, marks=pytest.mark.slow)],
)
def test_experts_move_and_no_token_changes(alone, name, redundant):
    eplb = {"enable_eplb": True, "eplb_config": {"num_redundant_experts": redundant}}
    params = tiny_params(CONFIG)
    with engine(params=params, **settings_of(name), **eplb) as llm:
        assert_same(answers(llm), alone)
        before, _ = logical_experts(llm)
        found = llm.rebalance_experts(loads())
        assert found.after < 1.1 < 1.4 < found.before
        slots, table = logical_experts(llm)
        assert found.num_moved == sum(a != b for a, b in zip(slots, before, strict=True))
        assert len(slots) == 16 + redundant
        assert sorted(set(slots)) == list(range(16))
        for expert, (count, *places) in enumerate(table):
            assert [slots[place] for place in places[:count]] == [expert] * count
        again = llm.rebalance_experts(loads()[:1])
        assert again.num_moved == 0
        assert again.before == again.after == found.after
        compiled = llm.num_compilations
        assert_same(answers(llm), alone)
        assert llm.num_compilations == compiled
        llm.sleep(level=1)
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))
        with pytest.raises(RuntimeError, match=r"call wake_up\(\) first"):
            llm.rebalance_experts(loads()[:, ::-1])
        llm.wake_up()
        assert_same(answers(llm), alone)
        places = jax.tree.map(
            lambda leaf: NamedSharding(leaf.sharding.mesh, leaf.sharding.spec), params_of(llm)
        )
        for layer in places["model"]["layers"].values():
            layer["mlp"].pop("replicas", None)
        llm.update_params(jax.device_put(tiny_params(CONFIG, seed=5), places))
        assert answers(llm)[0] != alone[0]
        given = jax.device_put(tiny_params(CONFIG), places)
        llm.update_params(given)
        assert_same(answers(llm), alone)
        assert logical_experts(llm)[0] == slots
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(given))


@pytest.mark.slow
def test_experts_move_by_what_was_counted():
    with engine(**settings_of("EP2"), enable_eplb=True, expert_statistics=True) as llm:
        wanted = answers(llm)
        load = llm.expert_statistics().load
        found = llm.rebalance_experts()
        assert load.sum() > 0
        assert llm.rebalance_experts(load).before == found.after <= found.before
        assert_same(answers(llm), wanted)


def test_experts_of_an_async_llm_move_between_requests_beside_the_event_loop(alone, monkeypatch):
    balance, heard = expert_balance.balance, threading.Event()

    def slow_balance(*arguments):
        assert heard.wait(60)  # which the event loop alone can end
        return balance(*arguments)

    monkeypatch.setattr(expert_balance, "balance", slow_balance)

    async def tokens(llm):
        outputs = [each async for each in llm.generate({"prompt_token_ids": PROMPTS[0]}, GREEDY)]
        return outputs[-1].outputs[0].token_ids

    async def main():
        options = settings_of("EP2") | {"enable_eplb": True, "expert_statistics": True}
        async with engine(AsyncLLM, **options) as llm:
            assert await tokens(llm) == alone[0][0]
            await llm.pause("keep")
            waiting = asyncio.create_task(tokens(llm))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="some are unfinished: pause the engine"):
                await llm.rebalance_experts(loads())
            await llm.resume()
            assert await waiting == alone[0][0]
            moving = asyncio.create_task(llm.rebalance_experts(loads()))
            asyncio.get_running_loop().call_later(0.05, heard.set)
            moved = await moving
            assert moved.after < 1.1 < 1.4 < moved.before
            assert moved.num_moved > 0
            assert await tokens(llm) == alone[0][0]
            counted = (await llm.expert_statistics()).load
            found = await llm.rebalance_experts()
            assert (await llm.rebalance_experts(counted)).before == found.after <= found.before
            assert await tokens(llm) == alone[0][0]

    asyncio.run(asyncio.wait_for(main(), 120))


def test_what_cannot_be_moved_is_refused():
    eplb = {"enable_eplb": True}
    with engine(**settings_of("EP2"), **eplb) as llm:
        for load, said in [
            (None, "expert_statistics=True"),
            (np.ones((3, 16)), r"here \[1, 16\], got \[3, 16\]"),
            (-np.ones((1, 16)), "from 0 up"),
            ([[1], [1, 2]], r"here \[1, 16\], all of them numbers$"),
        ]:
            with pytest.raises(ValueError, match=said):
                llm.rebalance_experts(load)
        llm.add_request("a", PROMPTS[0], GREEDY)
        with pytest.raises(RuntimeError, match="between requests, and some are unfinished"):
            llm.rebalance_experts(loads())
        with pytest.raises(ValueError, match="without mapping; leave it out"):
            llm.update_params(tiny_params(CONFIG), ParamsMapping.hugging_face(TINY_CONFIG))
    with engine() as llm, pytest.raises(ValueError, match="with enable_eplb=True"):
        llm.rebalance_experts(loads())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"eplb_config": {"num_redundant_experts": 3}}, "a multiple of the 4 groups"),
        (
            {"eplb_config": {"step_interval": 3000}},
            r"rebalance_experts\(load\) is called",
        ),
        ({"enable_eplb": False, "eplb_config": {}}, "eplb_config needs enable_eplb=True"),
        ({"enable_expert_parallel": False}, "enable_eplb needs enable_expert_parallel=True"),
        ({"expert_parallel_size": 1}, "and there is one group"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2}, "of one replica, in one process"),
    ],
)
def test_experts_that_cannot_be_moved_are_refused_at_start(options, said):
    asked = {"tensor_parallel_size": 4, "enable_expert_parallel": True, "enable_eplb": True}
    with pytest.raises(ValueError, match=said):
        engine(**(asked | options))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (16, "must be a dict such as"),
        ({"num_redundant": 1}, "did you mean 'num_redundant_experts'"),
        ({"num_redundant_experts": True}, "must be an integer"),
    ],
)
def test_an_eplb_config_names_its_mistake(given, said):
    with pytest.raises(TypeError, match=said):
        EplbConfig.of(given)
