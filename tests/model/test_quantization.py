"""Which quantized checkpoints are served, which projections are integers, and what they hold."""

import copy
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.architecture import init_params
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from jaxinfer.model.int8_params import quantize_params, quantize_weight
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantization import Int8Weights
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny

ALL = Int8Weights(())
# As llm-compressor writes it for W8A16 without packing.
QUANTIZATION = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "group_size": None,
                "block_structure": None,
                "dynamic": False,
                "actorder": None,
                "observer": "minmax",
                "observer_kwargs": {},
            },
            "input_activations": None,
            "output_activations": None,
        }
    },
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "sparsity_config": {},
    "transform_config": {},
    "version": "0.12.2",
}


def _read(quantization):
    mapping = tiny.CONFIG.to_hf() | {"quantization_config": quantization}
    return ModelConfig.from_hf(mapping, "config.json").quantization


def _changed(path, value):
    """The config with another value at a path; None at its end takes the key out."""
    changed = copy.deepcopy(QUANTIZATION)
    *parents, last = path.replace("GROUP", "config_groups.group_0").split(".")
    node = changed
    for name in parents:
        node = node[name]
    node[last] = value
    return changed


def test_int8_weights_with_a_scale_for_each_output_are_read_and_written_alike():
    assert _read(QUANTIZATION) == Int8Weights(("lm_head",))
    assert _read(_changed("ignore", [])) == ALL
    assert _read(_changed("ignore", None)) == ALL
    assert _read(None) is None
    for given in (ALL, Int8Weights(("lm_head", "re:.*down_proj"))):
        config = tiny.config(quantization=given)
        assert ModelConfig.from_hf(config.to_hf(), "config.json") == config
    assert "quantization_config" not in tiny.CONFIG.to_hf()


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("quant_method", "awq", "quantization_config.quant_method is 'awq'"),
        ("quant_method", "gptq", "quantization_config.quant_method is 'gptq'"),
        ("quant_method", "fp8", "quantization_config.quant_method is 'fp8'"),
        ("quant_method", None, "quantization_config.quant_method is None"),
        ("format", "pack-quantized", "quantization_config.format is 'pack-quantized'"),
        ("format", "float-quantized", "quantization_config.format is 'float-quantized'"),
        ("GROUP.format", "pack-quantized", "group_0.format is 'pack-quantized'"),
        ("GROUP.weights.num_bits", 4, "group_0.weights.num_bits is 4"),
        ("GROUP.weights.type", "float", "group_0.weights.type is 'float'"),
        ("GROUP.weights.symmetric", False, "group_0.weights.symmetric is False"),
        ("GROUP.weights.symmetric", 1, "group_0.weights.symmetric is 1"),
        ("GROUP.weights.strategy", "group", "group_0.weights.strategy is 'group'"),
        ("GROUP.weights.strategy", "tensor", "group_0.weights.strategy is 'tensor'"),
        ("GROUP.weights.group_size", 128, "group_0.weights.group_size is 128"),
        ("GROUP.weights.dynamic", True, "group_0.weights.dynamic is True"),
        ("GROUP.weights.actorder", "weight", "group_0.weights.actorder is 'weight'"),
        ("GROUP.weights", None, "group_0.weights must be an object"),
        ("GROUP.input_activations", {"num_bits": 8}, "group_0.input_activations is {'num_bits'"),
        ("GROUP.output_activations", {"num_bits": 8}, "group_0.output_activations is"),
        ("GROUP.targets", ["re:.*mlp.*"], "group_0.targets is ['re:.*mlp.*']"),
        ("config_groups", {}, "quantization_config.config_groups has 0 groups"),
        ("config_groups", [], "quantization_config.config_groups must be an object"),
        ("kv_cache_scheme", {"num_bits": 8}, "quantization_config.kv_cache_scheme is"),
        ("sparsity_config", {"format": "dense"}, "quantization_config.sparsity_config is"),
        ("transform_config", {"a": 1}, "quantization_config.transform_config is"),
        ("ignore", "lm_head", "quantization_config.ignore must be a list"),
        ("ignore", [3], "quantization_config.ignore must be a list of names"),
        ("ignore", ["re:("], "quantization_config.ignore has 're:('"),
    ],
)
def test_other_formats_are_refused_by_the_key_that_asks_for_them(path, value, named):
    with pytest.raises(ModelLoadError, match=f"^config.json: .*{re.escape(named)}") as caught:
        _read(_changed(path, value))
    message = str(caught.value)
    assert "\n" not in message
    assert "ignore" in path or "must be an object" in message or "int8 weights" in message


@pytest.mark.parametrize("value", ["awq", 3, ["compressed-tensors"]])
def test_a_config_that_is_no_object_is_refused(value):
    with pytest.raises(ModelLoadError, match="quantization_config must be an object"):
        _read(value)


def test_projections_alone_are_integers_and_none_that_is_ignored():
    paths = {"model.embed_tokens", "model.norm", "lm_head"}
    layers = [f"model.layers.{i}." for i in (0, 1, 11)]
    for layer in layers:
        paths |= {layer + name for name in ("self_attn.q_proj", "mlp.down_proj")}
        paths |= {layer + name for name in ("self_attn.q_proj_bias", "input_layernorm")}

    def taken(*ignore):
        return {path for path in paths if Int8Weights(ignore).takes(path)}

    projections = {layer + n for layer in layers for n in ("self_attn.q_proj", "mlp.down_proj")}
    assert taken() == projections | {"lm_head"}
    assert taken("lm_head", "q_proj") == projections
    assert taken("re:lm", "model.layers.1.mlp.down_proj") == (
        projections - {"model.layers.1.mlp.down_proj"}
    )
    assert taken("re:.*mlp", "re:down_proj") == {
        path for path in projections | {"lm_head"} if "mlp" not in path
    }


def _reference(weight):
    """Symmetric integers of each output, in NumPy."""
    scale = np.abs(weight).max(axis=1) * np.float32(1 / 127)
    scale[scale == 0] = 1
    return np.clip(np.rint(weight / scale[:, None]), -127, 127).astype(np.int8), scale


def test_an_outputs_largest_magnitude_is_127_and_halves_are_even():
    weight = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    weight[3] = 0
    weight[5, :6] = [127, 0.5, 1.5, -2.5, 0, 126.5]
    weight[5, 6:] = 0
    integers, scale = _reference(weight)
    for quantize in (jax.jit(quantize_weight), quantize_weight):
        node = quantize(jnp.asarray(weight))
        np.testing.assert_array_equal(node["weight"], integers)
        np.testing.assert_array_equal(node["scale"], scale)
    assert node["weight"][5, :6].tolist() == [127, 0, 2, -2, 0, 126]
    assert node["scale"][3] == 1
    assert np.isnan(quantize_weight(jnp.full((2, 2), jnp.nan))["scale"]).all()


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_scales_are_split_as_the_outputs_are(num_devices):
    config = tiny.config(num_key_value_heads=2, quantization=Int8Weights())
    described = dict(flatten(abstract_params(config, jnp.bfloat16, make_mesh(num_devices))))
    specs = {path: leaf.sharding.spec for path, leaf in described.items()}
    attention, mlp = "model.layers.0.self_attn", "model.layers.0.mlp"
    split, whole = PartitionSpec("tensor"), PartitionSpec()
    assert specs[f"{attention}.q_proj.scale"] == specs[f"{attention}.q_proj.weight"] == split
    assert specs[f"{attention}.k_proj.scale"] == (whole if num_devices == 4 else split)
    assert specs[f"{attention}.o_proj.weight"] == PartitionSpec(None, "tensor")
    assert specs[f"{attention}.o_proj.scale"] == specs[f"{mlp}.down_proj.scale"] == whole
    dtypes = {path.rpartition(".")[2]: leaf.dtype for path, leaf in described.items()}
    assert (dtypes["weight"], dtypes["scale"], dtypes["norm"]) == ("int8", "float32", "bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False, "attention_bias": True}])
def test_forward_is_that_of_the_plain_tree_bit_for_bit(changes, dtype):
    config = tiny.config(**changes)
    params = quantize_params(tiny.params(config, dtype), ALL)
    assert params["model"]["layers"]["0"]["mlp"]["up_proj"]["weight"].dtype == jnp.int8
    tokens = tiny.token_ids(config, 2, 12)
    run = jax.jit(forward, static_argnums=1)
    plain = tiny.plain_params(params, dtype)
    assert jax.tree.structure(plain) == jax.tree.structure(tiny.params(config))
    quantized_config = dataclasses.replace(config, quantization=ALL)
    np.testing.assert_array_equal(run(params, quantized_config, tokens), run(plain, config, tokens))


def test_random_params_of_a_quantized_config_fit_it():
    config = tiny.config(quantization=Int8Weights(), tie_word_embeddings=False)
    params = init_params(config, jax.random.key(0), "bfloat16")
    described = abstract_params(config, "bfloat16")
    assert jax.tree.structure(params) == jax.tree.structure(described)
    for (path, leaf), (_, like) in zip(flatten(params), flatten(described), strict=True):
        assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype), path
