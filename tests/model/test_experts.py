"""A model with experts: its config, its tree, its files, its layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer import LLM, SamplingParams, forward
from jaxinfer.errors import ModelLoadError
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.safetensors_file import read_header, write_file
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.degrees import check_expert_groups, degrees
from jaxinfer.model.experts import Experts
from jaxinfer.model.families import qwen3_moe
from jaxinfer.model.layers import decoder
from jaxinfer.model.layers.context import LayerContext
from jaxinfer.model.layers.experts import expert_block
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.sharding import ShardingRules, check_divisible, make_mesh, split_experts
from jaxinfer.serving.programs.step_inputs import StepInputs
from tests.model import tiny
from tests.model.checkpoint.test_weights import assert_trees_equal

EXPERTS = Experts(num_experts=6, experts_per_token=2, intermediate_size=16, dense_layers=(1,))
CONFIG = tiny.config(model_type="qwen3_moe", num_hidden_layers=3, experts=EXPERTS)
GATE = "model.layers.0.mlp.experts.{}.gate_proj.weight"


def changed(**fields):
    return dataclasses.replace(CONFIG, experts=dataclasses.replace(EXPERTS, **fields))


@pytest.fixture(scope="module")
def params():
    return tiny.params(CONFIG)


@pytest.fixture
def saved(params, tmp_path):
    """A directory with the model's files."""
    save_params(params, CONFIG, tmp_path)
    return tmp_path


def tensors_of(directory):
    file = directory / "model.safetensors"
    return {name: np.array(each.mapped()) for name, each in read_header(file).items()}


def rewrite(directory, tensors):
    write_file(directory / "model.safetensors", tensors.items(), tensors)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="num_experts_per_tok must be a whole number from 1 to 6"):
        changed(experts_per_token=7)
    with pytest.raises(ValueError, match="dense_layers must be a whole number from 0 to 2, got 3"):
        changed(dense_layers=(3,))
    with pytest.raises(ValueError, match="models with experts take plain weights, or fp8"):
        dataclasses.replace(CONFIG, quantization=Quantization("int8"))
    with pytest.raises(ValueError, match='"qwen3_moe" needs experts'):
        qwen3_moe.layer_kinds(dataclasses.replace(CONFIG, experts=None))


def test_fewer_layers_keep_their_kinds():
    kinds = qwen3_moe.layer_kinds(CONFIG)
    assert [kind.experts for kind in kinds] == [True, False, True]
    for layers in ([1], [0, 2], [2, 1]):
        fewer = qwen3_moe.with_layers(CONFIG, layers)
        assert qwen3_moe.layer_kinds(fewer) == tuple(kinds[layer] for layer in layers)


def test_devices_share_the_width_of_every_expert():
    specs = tiny.param_specs(CONFIG, make_mesh(2))["model"]["layers"]["0"]["mlp"]
    assert specs["gate"] == PartitionSpec()
    assert specs["experts"] == {
        "gate_proj": PartitionSpec(None, "tensor"),
        "up_proj": PartitionSpec(None, "tensor"),
        "down_proj": PartitionSpec(None, None, "tensor"),
    }


EIGHT = changed(num_experts=8, experts_per_token=3)
SPLITS = [(2, 2), (4, 4), (8, 8), (4, 2), (8, 4)]


def split(devices, groups):
    """A mesh with experts split over groups of its devices, and its rules."""
    return split_experts(make_mesh(devices), ShardingRules(), groups)


def test_experts_split_one_axis_of_heads_alone():
    rules = ShardingRules(heads=("data", "tensor"))
    with pytest.raises(ValueError, match=r"on \('data', 'tensor'\); give one axis"):
        split_experts(make_mesh(4), rules, 2)


def test_groups_of_devices_have_whole_experts():
    whole = tiny.param_specs(EIGHT, *split(4, 4))["model"]["layers"]
    assert whole["0"]["mlp"]["gate"] == PartitionSpec()
    assert set(whole["0"]["mlp"]["experts"].values()) == {PartitionSpec("tensor")}
    assert whole["1"]["mlp"]["gate_proj"] == PartitionSpec("tensor")  # a dense layer
    shared = tiny.param_specs(EIGHT, *split(4, 2))["model"]["layers"]
    assert shared["0"]["mlp"]["experts"] == {
        "gate_proj": PartitionSpec("expert", "tensor"),
        "up_proj": PartitionSpec("expert", "tensor"),
        "down_proj": PartitionSpec("expert", None, "tensor"),
    }
    both = PartitionSpec(("expert", "tensor"))
    assert shared["1"]["mlp"]["gate_proj"] == shared["0"]["self_attn"]["q_proj"] == both


@pytest.mark.parametrize(("devices", "groups"), SPLITS)
def test_shares_of_experts_add_up_to_all_of_them(devices, groups, monkeypatch):
    """Padding, one row in five, goes through none on any device."""
    layer = tiny.params(EIGHT)["model"]["layers"]["0"]
    x = jnp.asarray(np.random.default_rng(1).normal(size=(40, 32)), jnp.float32)
    tokens = StepInputs(slot_mapping=jnp.arange(40) % 5 * 16)
    kind = qwen3_moe.layer_kinds(EIGHT)[0]
    context = LayerContext(EIGHT, kind, lambda *_: pytest.fail("attends"), tokens=tokens)
    expected = expert_block(layer, ResidualStream(x), context).summed() - x
    mesh, rules = split(devices, groups)
    axis = TensorAxis(rules.heads, experts=rules.experts)
    monkeypatch.setattr(decoder, "sum_and_add", lambda share, *_: ResidualStream(share))

    def share(layer, x):
        own = dataclasses.replace(context, axis=axis)
        return expert_block(layer, ResidualStream(x), own).summed()[None]

    specs = tiny.param_specs(EIGHT, mesh, rules)["model"]["layers"]["0"]
    whole, apart = PartitionSpec(), PartitionSpec(rules.heads)
    run = jax.shard_map(share, mesh=mesh, in_specs=(specs, whole), out_specs=apart, check_vma=False)
    shares = np.asarray(jax.jit(run)(layer, x))
    assert len(shares) == devices
    np.testing.assert_allclose(shares.sum(0), expected, rtol=0, atol=1e-5)
    assert not np.abs(shares[:, ::5]).max()
    # Each token meets 3 experts, so that most groups have nothing of it.
    has_part = (np.abs(shares).max(-1) > 0).reshape(groups, -1, 40).any(1).sum(0)
    assert has_part.max() == min(groups, 3)


def test_a_load_sends_each_device_its_own_experts_alone(tmp_path, monkeypatch):
    params, copied = tiny.params(EIGHT), []
    save_params(params, EIGHT, tmp_path)
    own_copy = weights._own_copy

    def copy(view, dtype):
        copied.append((type(view).__name__, view.shape))
        return own_copy(view, dtype)

    monkeypatch.setattr(weights, "_own_copy", copy)
    assert_trees_equal(load_params(tmp_path, EIGHT, "float32", *split(4, 2)), params)
    stacks = [shape for name, shape in copied if name == "Stack"]
    assert stacks.count((4, 8, 32)) == 2 * 2 * 4  # gate and up of two layers, on four devices
    assert stacks.count((4, 32, 8)) == 2 * 4
    assert len(stacks) == 3 * 2 * 4


@pytest.mark.parametrize(
    ("config", "devices", "groups", "said"),
    [
        (CONFIG, 4, None, r"4 does not divide num_experts \(6\); .* tensor_parallel_size 4: 1, 2$"),
        (CONFIG, 4, 3, r"3 does not divide tensor_parallel_size \(4\); .*_size 4: 1, 2$"),
        (
            changed(intermediate_size=18),
            8,
            2,
            r"8 does not divide .* \(18\); sizes that work: 2, 4$",
        ),
        (tiny.config(), 4, None, "this qwen3 has none; leave it out"),
    ],
)
def test_groups_that_cannot_be_are_refused(config, devices, groups, said):
    with pytest.raises(ValueError, match=said):
        check_expert_groups(config, devices, groups)


def test_degrees_are_counted_with_experts_whole():
    wide = changed(num_experts=8, intermediate_size=10, dense_layers=())
    with pytest.raises(ValueError, match=r"sizes that work: 1, 2$"):
        check_divisible(wide, 4)
    check_divisible(wide, 4, 2)
    assert degrees(wide, 4, 4) == [1, 2, 4, 8]
    assert degrees(wide, 4, 2) == [2, 4]
    with pytest.raises(ValueError, match=r"not divide vocab_size \(62\); sizes that work: 1, 2$"):
        check_divisible(dataclasses.replace(wide, vocab_size=62), 4, 4)


def test_degrees_that_do_not_divide_an_expert_are_refused():
    check_divisible(changed(dense_layers=()), 2)
    with pytest.raises(ValueError, match=r"moe_intermediate_size \(18\); sizes that work: 1, 2$"):
        check_divisible(changed(intermediate_size=18), 4)
    uneven = dataclasses.replace(CONFIG, intermediate_size=50)
    with pytest.raises(ValueError, match=r"does not divide intermediate_size \(50\)"):
        check_divisible(uneven, 4)
    # Without a dense layer nothing has that width.
    check_divisible(dataclasses.replace(changed(dense_layers=()), intermediate_size=50), 4)


@pytest.mark.parametrize("devices", [None, 1, 2])
def test_files_number_experts_and_the_tree_stacks_them(params, saved, devices):
    names = set(tensors_of(saved))
    assert {GATE.format(i) for i in range(6)} <= names
    assert GATE.format(6) not in names
    assert not any(".experts." in name for name in names if ".layers.1." in name)
    mesh = None if devices is None else make_mesh(devices)
    loaded = load_params(saved, CONFIG, "float32", mesh)
    assert_trees_equal(loaded, params)


def test_a_load_holds_no_leaf_of_experts_twice(saved, monkeypatch):
    """Each device's share is copied once, from maps of the files; other experts are not read."""
    copied = []
    own_copy = weights._own_copy

    def copy(view, dtype):
        copied.append((type(view).__name__, view.shape))
        return own_copy(view, dtype)

    monkeypatch.setattr(weights, "_own_copy", copy)
    load_params(saved, CONFIG, "float32", make_mesh(2))
    stacks = [shape for name, shape in copied if name == "Stack"]
    assert stacks.count((6, 8, 32)) == 2 * 2 * 2  # gate and up of two layers, on two devices
    assert stacks.count((6, 32, 8)) == 2 * 2
    assert not any(len(shape) == 3 for name, shape in copied if name != "Stack")


def test_a_missing_expert_is_named(saved):
    tensors = tensors_of(saved)
    del tensors[GATE.format(4)]
    rewrite(saved, tensors)
    with pytest.raises(ModelLoadError, match=f"tensor '{GATE.format(4)}' is missing"):
        load_params(saved, CONFIG, "float32")


def test_an_expert_too_many_or_of_another_width_is_named(saved):
    with pytest.raises(ModelLoadError, match=r"experts.5.* is not in config.json's model"):
        load_params(saved, changed(num_experts=5), "float32")
    tensors = tensors_of(saved)
    tensors[GATE.format(3)] = np.zeros((15, 32), np.float32)
    rewrite(saved, tensors)
    with pytest.raises(ModelLoadError, match=r"experts.3.gate_proj.weight has shape \(15, 32\)"):
        load_params(saved, CONFIG, "float32")


def test_nan_in_an_expert_is_found(saved):
    tensors = tensors_of(saved)
    tensors[GATE.format(3)][0, 0] = np.nan
    rewrite(saved, tensors)
    with pytest.raises(ModelLoadError, match="or one of 5 tensors beside it, holds NaN"):
        load_params(saved, CONFIG, "float32")


def test_sequences_are_scored_alike_on_a_mesh(params, saved):
    token_ids = jnp.asarray(np.random.default_rng(0).integers(0, 64, (3, 20)))
    expected = forward(params, CONFIG, token_ids)
    sharded = load_params(saved, CONFIG, "float32", make_mesh(2))
    found = jax.jit(forward, static_argnums=1)(sharded, CONFIG, token_ids)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)

    def loss(params):
        return jnp.mean(jax.nn.logsumexp(forward(params, CONFIG, token_ids, remat=True), axis=-1))

    gradients = jax.grad(loss)(params)
    for ours, theirs in zip(
        jax.tree.leaves(jax.jit(jax.grad(loss))(sharded)), jax.tree.leaves(gradients), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [None, jnp.asarray([2, 0, 4], jnp.int32)])
def test_padding_of_a_step_goes_through_no_expert(params, rows):
    """Of tokens it is what writes to slot 0, of rows what has no key."""
    x = jnp.asarray(
        np.random.default_rng(1).normal(size=(5 if rows is None else 3, 32)), jnp.float32
    )
    tokens = StepInputs(
        slot_mapping=jnp.asarray([16, 35, 0, 17, 0]), context_lens=jnp.asarray([4, 0, 7])
    )
    kind = qwen3_moe.layer_kinds(CONFIG)[0]
    context = LayerContext(
        CONFIG, kind, lambda *_: pytest.fail("attends"), tokens=tokens, rows=rows
    )
    layer = params["model"]["layers"]["0"]
    share = expert_block(layer, ResidualStream(x), context).summed() - x
    whole = expert_block(layer, ResidualStream(x), dataclasses.replace(context, tokens=None))
    whole = whole.summed() - x
    are_tokens = [0, 1, 3] if rows is None else [0, 2]
    assert np.flatnonzero(np.abs(share).max(-1)).tolist() == are_tokens
    np.testing.assert_array_equal(share[jnp.asarray(are_tokens)], whole[jnp.asarray(are_tokens)])


def with_nan_embedding(tree):
    """Token 9 has no finite embedding: its router gives NaN."""
    tree["embed_tokens"] = tree["embed_tokens"].at[9].set(jnp.nan)


def with_infinite_logit(tree):
    """Token 9 alone has anything in dimension 3, of which the first router makes infinity."""
    tree["embed_tokens"] = tree["embed_tokens"].at[9].set(0).at[9, 3].set(100.0)
    only_here = {"gate": tree["layers"]["0"]["mlp"]["gate"].at[0, 3].set(3e38)}
    tree["layers"]["0"]["mlp"] |= only_here


@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow("alone"))]
)
@pytest.mark.parametrize("fault", [with_nan_embedding, with_infinite_logit])
def test_a_row_of_nan_ends_alone(params, dtype, fault):
    """Its neighbours' log-probabilities have the same bits; three rows are padded as four are."""
    sound = jax.tree.map(lambda leaf: leaf.astype(dtype), params["model"])
    head = {"lm_head": sound["embed_tokens"]}
    sound["embed_tokens"] = sound["embed_tokens"].at[:, 3].set(0)
    attention = sound["layers"]["0"]["self_attn"]
    attention["o_proj"] = attention["o_proj"].at[3].set(0)
    bad = jax.tree.map(lambda leaf: leaf, sound)  # dictionaries of its own
    fault(bad)
    untied = dataclasses.replace(CONFIG, tie_word_embeddings=False)
    greedy = SamplingParams(
        temperature=0.0, max_tokens=6, ignore_eos=True, logit_bias={9: -100.0}, logprobs=2
    )
    prompts = [[1, 2, 3], [4, 9, 5, 6], list(range(10, 27)), [8] * 5]
    outputs = []
    options = {"dtype": dtype, "max_model_len": 64, "max_num_seqs": 4, "num_decode_steps": 1}
    for tree in (sound, bad):
        with LLM(params={"model": tree} | head, config=untied, **options) as llm:
            outputs.append(llm.generate(prompts, greedy, use_tqdm=False))
    assert outputs[0][1].error is None
    assert "not finite" in outputs[1][1].error
    for before, after in [pair for i, pair in enumerate(zip(*outputs, strict=True)) if i != 1]:
        assert after.error is None
        assert before.outputs[0].token_ids == after.outputs[0].token_ids
        assert before.outputs[0].logprobs == after.outputs[0].logprobs
        assert len(after.outputs[0].token_ids) == 6
