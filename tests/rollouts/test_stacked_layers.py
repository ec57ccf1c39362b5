"""Trainers that hold all layers in one array: `nnx.vmap`, Linen's `nn.scan`, MaxText."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxinfer import ParamsMapping, ShardingRules, abstract_params
from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.trees import leaves_by_path
from tests.rollouts import trainers
from tests.serving.small_llm import CONFIG, small_llm, small_params

WANTED = abstract_params(CONFIG, jnp.float32)
OWN, FLAX = ParamsMapping.hugging_face(CONFIG), ParamsMapping.nnx_linear(CONFIG)
TUNIX = ParamsMapping.tunix_qwen3(CONFIG)
L = CONFIG.num_hidden_layers
SIZES = {
    "self_attn": {
        "q_proj": CONFIG.num_attention_heads * CONFIG.head_dim,
        "k_proj": CONFIG.num_key_value_heads * CONFIG.head_dim,
        "v_proj": CONFIG.num_key_value_heads * CONFIG.head_dim,
        "o_proj": CONFIG.hidden_size,
    },
    "mlp": {
        "gate_proj": CONFIG.intermediate_size,
        "up_proj": CONFIG.intermediate_size,
        "down_proj": CONFIG.hidden_size,
    },
}
INPUTS = {"o_proj": SIZES["self_attn"]["q_proj"], "down_proj": CONFIG.intermediate_size}


def num_inputs(name: str) -> int:
    return INPUTS.get(name, CONFIG.hidden_size)


def own(params: Any) -> Any:
    return params


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    ("mapping", "held"), [(OWN, own), (FLAX, trainers.flax_layers), (TUNIX, trainers.tunix)]
)
def test_stacked_layers_give_the_engines_parameters(mapping, held, axis):
    tree = trainers.with_stacked_layers(held(small_params()), axis)
    made = MappedParams(tree, mapping.stacked(axis)).make(CONFIG, None, None, ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, small_params())


def test_maxtexts_layers_may_be_separate():
    decoder = trainers.maxtext(small_params(), axis=0)["params"]["decoder"]
    layers = {
        f"layers_{i}": jax.tree.map(lambda leaf, i=i: leaf[i], decoder["layers"]) for i in range(L)
    }
    tree = trainers.maxtext(small_params())["params"] | {"decoder": decoder | layers}
    del tree["decoder"]["layers"]
    mapping = ParamsMapping.maxtext_qwen3(CONFIG, param_scan_axis=None)
    made = MappedParams(tree, mapping).make(CONFIG, None, None, ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, small_params())


def test_maxtext_may_scan_along_another_axis():
    mapping = ParamsMapping.maxtext_qwen3(CONFIG, param_scan_axis=0)
    tree = trainers.maxtext(small_params(), axis=0)
    made = MappedParams(tree, mapping).make(CONFIG, None, None, ShardingRules())
    jax.tree.map(np.testing.assert_array_equal, made, small_params())


class FlaxLayer(nnx.Module):
    """A layer of Flax's own parts."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        for block, sizes in SIZES.items():
            linears = {
                name: nnx.Linear(num_inputs(name), size, use_bias=False, rngs=rngs)
                for name, size in sizes.items()
            }
            setattr(self, block, nnx.Dict(linears))
        for name in ("q_norm", "k_norm"):
            self.self_attn[name] = nnx.RMSNorm(CONFIG.head_dim, rngs=rngs)
        self.input_layernorm = nnx.RMSNorm(CONFIG.hidden_size, rngs=rngs)
        self.post_attention_layernorm = nnx.RMSNorm(CONFIG.hidden_size, rngs=rngs)


class FlaxModel(nnx.Module):
    """Its layers made by `nnx.vmap`, as `nnx.scan` needs them."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        layers = nnx.vmap(FlaxLayer)(rngs.split(L))
        self.model = nnx.Dict(
            embed_tokens=nnx.Embed(CONFIG.vocab_size, CONFIG.hidden_size, rngs=rngs),
            layers=layers,
            norm=nnx.RMSNorm(CONFIG.hidden_size, rngs=rngs),
        )
        self.lm_head = nnx.Linear(CONFIG.hidden_size, CONFIG.vocab_size, use_bias=False, rngs=rngs)


class LinenBlock(nn.Module):
    """Named children with parameters, whatever they compute."""

    kernels: Any
    scales: Any

    @nn.compact
    def __call__(self) -> None:
        for name, size in self.kernels.items():
            nn.Dense(size, use_bias=False, name=name)(jnp.ones(num_inputs(name)))
        for name, size in self.scales.items():
            nn.RMSNorm(name=name)(jnp.ones(size))


class LinenLayer(nn.Module):
    """A layer of Linen's parts."""

    @nn.compact
    def __call__(self, carry: Any) -> Any:
        heads = {"q_norm": CONFIG.head_dim, "k_norm": CONFIG.head_dim}
        LinenBlock(SIZES["self_attn"], heads, name="self_attn")()
        LinenBlock(SIZES["mlp"], {}, name="mlp")()
        for name in ("input_layernorm", "post_attention_layernorm"):
            nn.RMSNorm(name=name)(jnp.ones(CONFIG.hidden_size))
        return carry, None


class LinenModel(nn.Module):
    """Its layers under `nn.scan`."""

    @nn.compact
    def __call__(self) -> None:
        LinenBackbone(name="model")()
        nn.Dense(CONFIG.vocab_size, use_bias=False, name="lm_head")(jnp.ones(CONFIG.hidden_size))


class LinenBackbone(nn.Module):
    """What is under ``model``."""

    @nn.compact
    def __call__(self) -> None:
        nn.Embed(CONFIG.vocab_size, CONFIG.hidden_size, name="embed_tokens")(jnp.zeros(1, int))
        scanned = nn.scan(
            LinenLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=L
        )
        scanned(name="layers")(None)
        nn.RMSNorm(name="norm")(jnp.ones(CONFIG.hidden_size))


def flax_model() -> Any:
    return nnx.eval_shape(lambda: FlaxModel(nnx.Rngs(0)))


@pytest.mark.parametrize(
    "tree",
    [
        flax_model,
        lambda: nnx.state(flax_model(), nnx.Param),
        lambda: nnx.to_pure_dict(nnx.state(flax_model())),
        lambda: jax.eval_shape(LinenModel().init, jax.random.key(0)),
    ],
    ids=["nnx.vmap", "nnx.State", "nnx.to_pure_dict", "Linen's nn.scan"],
)
def test_what_flax_stacks_is_taken(tree):
    leaves = leaves_by_path(tree())
    assert leaves["model.layers.mlp.up_proj.kernel"].shape[0] == L
    assert len(FLAX.stacked().assignments(leaves, WANTED)) == len(jax.tree.leaves(WANTED))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("given", [1, 3])
def test_another_number_of_stacked_layers_is_named(given, axis):
    tree = trainers.with_stacked_layers(trainers.flax_layers(small_params()), axis)
    norm = tree["model"]["layers"]["self_attn"]["q_norm"]
    norm["scale"] = jnp.repeat(norm["scale"], 2, axis).take(jnp.arange(given), axis)
    cause = rf"self_attn\.q_norm\.scale\], .*, has {given} layers along axis {axis}, but .* has 2$"
    with pytest.raises(ValueError, match=cause):
        MappedParams(tree, FLAX.stacked(axis)).check(WANTED)


@pytest.mark.parametrize("given", [1, 3])
def test_another_number_of_separate_layers_is_named(given):
    tree = trainers.tunix(small_params())
    tree["layers"] = {i: tree["layers"][i % L] for i in range(given)}
    cause = rf"params\[layers\.{{layer}}\.\S+\] has {given} layers, but the model has 2$"
    with pytest.raises(ValueError, match=cause):
        MappedParams(tree, TUNIX).check(WANTED)


def test_a_gap_between_layers_is_named():
    tree = trainers.tunix(small_params())
    tree["layers"] = {0: tree["layers"][0], 2: tree["layers"][1]}
    three = dataclasses.replace(CONFIG, num_hidden_layers=3)
    with pytest.raises(ValueError, match=r"from layers\.1\.\S+, not in params"):
        MappedParams(tree, TUNIX).check(abstract_params(three, jnp.float32))


def test_numbers_in_the_names_of_layers_are_left_out_too():
    sources = {path: path.replace("layers.{", "layers_{") for path, _ in OWN.sources}
    assert ParamsMapping(sources).stacked().sources == OWN.stacked().sources


def test_stacked_layers_without_their_mapping_are_recognised():
    tree = trainers.with_stacked_layers(small_params(), 0)
    with pytest.raises(ValueError, match=r"use mapping\.stacked\(axis\)"):
        MappedParams(tree, OWN).check(WANTED)
    with pytest.raises(ValueError, match=r"mapping=ParamsMapping\.hugging_face\(config\)\.stacked"):
        small_llm(params=tree)
    with pytest.raises(ValueError, match="layers are stacked, along axis 1"):
        ParamsMapping.maxtext_qwen3(CONFIG).stacked()


def test_an_engine_starts_and_is_updated_from_stacked_layers():
    mapping, other = OWN.stacked(), trainers.other_params()
    first, second = (trainers.with_stacked_layers(each, 0) for each in (small_params(), other))
    with small_llm(params=first, mapping=mapping) as llm:
        for tree, expected in ((first, small_params()), (second, other)):
            llm.update_params(tree, mapping)
            held = llm._loaded.replicas[0].runner.resident.params
            jax.tree.map(np.testing.assert_array_equal, held, expected)
