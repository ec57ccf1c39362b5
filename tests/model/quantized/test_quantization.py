"""Which quantized checkpoints are served, which projections are integers, and what they hold."""

import copy
import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.architecture import init_params
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.projections import PROJECTIONS
from jaxinfer.model.quantized.params import quantize_params, quantize_weight
from jaxinfer.model.quantized.quantization import SCHEMES, Quantization, with_scheme
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny
from tests.model.quantized.stored import CONFIG, FORMATS

ALL = Quantization("int8", ignore=())
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
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
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


FORMS = {
    "int8": Quantization("int8"),
    "w8a8": Quantization("int8", inputs="token"),
    "w8a8_static": Quantization("int8", inputs="tensor", one_scale=True),
    "fp8_dynamic": Quantization("fp8", inputs="token"),
    "fp8_static": Quantization("fp8", inputs="tensor", one_scale=True),
    "fp8_block": Quantization("fp8", (16, 16), inputs="group"),
    "pack": Quantization("int4", (1, 16)),
    "pack_channel": Quantization("int4"),
    "pack_zeros": Quantization("int4", (1, 16), zero_points=True),
    "pack_order": Quantization("int4", (1, 16), act_order=True),
    "pack8": Quantization("int8", (1, 16)),
    "hf_fp8": Quantization("fp8", (16, 16), inputs="group"),
    "hf_fp8_static": Quantization("fp8", inputs="tensor", one_scale=True),
    "awq": Quantization("int4", (1, 16), zero_points=True),
    "gptq": Quantization("int4", (1, 16)),
    "gptq_zeros": Quantization("int4", (1, 16), zero_points=True),
    "gptq_channel": Quantization("int4"),
    "gptq_order": Quantization("int4", (1, 16), zero_points=True, act_order=True),
    "gptq_v2": Quantization("int4", (1, 16), zero_points=True),
    "gptq8": Quantization("int8", (1, 16)),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_as_its_form(name):
    read = _read(FORMATS[name].config)
    assert dataclasses.replace(read, stored="plain") == FORMS[name]
    method = FORMATS[name].config["quant_method"]
    stored = FORMATS[name].config["format"] if method == "compressed-tensors" else method
    assert read.stored == ("gptq_v2" if name == "gptq_v2" else stored)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_form_is_read_from_the_config_that_is_written(form):
    form = dataclasses.replace(form, ignore=("lm_head", "re:.*down_proj"))
    config = tiny.config(hidden_size=64, intermediate_size=64, quantization=form)
    read = ModelConfig.from_hf(config.to_hf(), "config.json")
    assert read == dataclasses.replace(config, quantization=form.saved())
    values = json.loads(json.dumps(dataclasses.asdict(form)))
    assert Quantization.from_values(values) == form


def test_ignored_projections_are_listed_or_none():
    assert _read(QUANTIZATION).ignore == ("lm_head",)
    assert _read(_changed("ignore", [])).ignore == _read(_changed("ignore", None)).ignore == ()
    assert _read(None) is None
    assert "quantization_config" not in tiny.CONFIG.to_hf()


@pytest.mark.parametrize(
    ("name", "ignored", "taken"),
    [
        ("hf_fp8", "model.layers.1.mlp", "model.layers.11.mlp.up_proj"),
        ("hf_fp8", "layers.1", "model.layers.10.mlp.up_proj"),
        ("hf_fp8", "up_proj", "model.layers.1.mlp.gate_up_proj.gate_proj"),
        ("awq", "layers.1.mlp", "model.layers.1.self_attn.q_proj"),
        ("gptq", "up_pro", "model.layers.1.mlp.gate_proj"),
    ],
)
def test_modules_to_not_convert_are_matched_as_their_programs_match_them(name, ignored, taken):
    form = _read(FORMATS[name].config | {"modules_to_not_convert": [ignored, "lm_head"]})
    assert form.takes(taken)
    assert not form.takes("model.layers.1.mlp.up_proj")
    assert not form.takes("lm_head")


@pytest.mark.parametrize(
    ("name", "ignored", "kept"),
    [
        ("int8", "model.layers.1.self_attn.qkv_proj", "model.layers.1.self_attn.k_proj"),
        ("int8", "model.language_model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj"),
        ("int8", "language_model.model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj"),
        ("int8", r"re:language_model\.model\.layers\.1\.", "model.layers.1.mlp.up_proj"),
        ("int8", "language_model.lm_head", "lm_head"),
    ],
)
def test_ignored_names_may_be_those_of_the_files(name, ignored, kept):
    form = _read(FORMATS[name].config | {"ignore": [ignored]})
    assert not form.takes(kept)
    assert form.takes("model.layers.11.mlp.down_proj")


@pytest.mark.parametrize(
    ("name", "changes", "other"),
    [
        ("int8", {"sparsity_config": {"format": "dense", "targets": []}}, "int8"),
        ("int8", {"format": "naive-quantized"}, "int8"),
        ("fp8_dynamic", {"format": "naive-quantized"}, "fp8_dynamic"),
        ("awq", {"bits": None, "w_bit": 4, "group_size": None, "q_group_size": 16}, "awq"),
        ("gptq_zeros", {"format": "gptq_v2"}, "gptq_v2"),
        ("gptq_v2", {"format": "gptq"}, "gptq_v2"),
        ("hf_fp8", {"ignored_layers": ["lm_head"]}, "hf_fp8"),
    ],
)
def test_other_spellings_mean_the_same(name, changes, other):
    given = {k: v for k, v in (FORMATS[name].config | changes).items() if v is not None}
    assert _read(given) == _read(FORMATS[other].config)
    mapping = CONFIG.to_hf() | {"compression_config": given}
    assert ModelConfig.from_hf(mapping, "config.json").quantization == _read(given)


def test_targets_may_be_patterns_of_all_projections_and_a_strategy_be_left_out():
    targets = ["re:.*self_attn.*", r"re:.*(gate|up|down)_proj$"]
    assert _read(_changed("GROUP.targets", targets)) == _read(QUANTIZATION)
    inferred = _changed("GROUP.weights.strategy", None)
    for size, strategy in ((None, "tensor"), (-1, "channel"), (16, "group")):
        inferred["config_groups"]["group_0"]["weights"]["group_size"] = size
        said = copy.deepcopy(inferred)
        said["config_groups"]["group_0"]["weights"]["strategy"] = strategy
        assert _read(inferred) == _read(said)


def test_gptq_may_leave_projections_out():
    inside = [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["mlp.down_proj"]]
    form = _read(FORMATS["gptq"].config | {"modules_in_block_to_quantize": inside})
    taken = {name for name in PROJECTIONS[:-1] if form.takes(f"model.layers.3.{name}")}
    assert taken == {name for names in inside for name in names}


_WEIGHTS, _INPUTS = "GROUP.weights", "GROUP.input_activations"
_DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("quant_method", "bitsandbytes", "quant_method is 'bitsandbytes'; supported: 'compressed-"),
        ("quant_method", None, "quant_method is None"),
        ("format", "marlin-24", "format is 'marlin-24'; supported: 'int-quantized', 'float-"),
        ("GROUP.format", "nvfp4-pack-quantized", "group_0.format is 'nvfp4-pack-quantized'"),
        (f"{_WEIGHTS}.num_bits", 4, "group_0.weights.num_bits is 4; supported: 8"),
        (f"{_WEIGHTS}.type", "float", "group_0.weights.type is 'float'; supported: 'int'"),
        (f"{_WEIGHTS}.symmetric", False, "group_0.weights.symmetric is False"),
        (f"{_WEIGHTS}.symmetric", 1, "group_0.weights.symmetric is 1"),
        (f"{_WEIGHTS}.strategy", "tensor_group", "group_0.weights.strategy is 'tensor_group'"),
        (f"{_WEIGHTS}.dynamic", True, "group_0.weights.dynamic is True"),
        (f"{_WEIGHTS}.actorder", "random", "group_0.weights.actorder is 'random'"),
        (f"{_WEIGHTS}.actorder", "group", "group_0.weights.actorder is 'group'; supported: None"),
        (_WEIGHTS, None, "group_0.weights must be an object"),
        (_WEIGHTS, {"strategy": "group", "num_bits": 8, "type": "int"}, "group_size is None"),
        (_INPUTS, _DYNAMIC | {"num_bits": 4}, "input_activations.num_bits is 4"),
        (_INPUTS, _DYNAMIC | {"type": "float"}, "input_activations.type is 'float'"),
        (_INPUTS, _DYNAMIC | {"symmetric": False}, "input_activations.symmetric is False"),
        (_INPUTS, _DYNAMIC | {"strategy": "group"}, "input_activations.group_size is None"),
        (_INPUTS, _DYNAMIC | {"dynamic": False}, "input_activations.strategy is 'token'"),
        ("GROUP.output_activations", {"num_bits": 8}, "group_0.output_activations is"),
        ("GROUP.targets", ["re:.*mlp.*"], "group_0.targets is ['re:.*mlp.*']; it must be"),
        ("config_groups", {}, "config_groups has 0 groups"),
        ("config_groups", {"a": {}, "b": {}}, "config_groups has 2 groups"),
        ("config_groups", [], "config_groups must be an object"),
        ("sparsity_config", {"format": "sparse-24-bitmask"}, "sparsity_config is"),
        ("transform_config", {"a": 1}, "transform_config is"),
        ("ignore", "lm_head", "ignore must be a list"),
        ("ignore", [3], "ignore must be a list of names"),
        ("ignore", ["re:("], "ignore has 're:('"),
    ],
)
def test_other_forms_are_refused_by_the_key_that_asks_for_them(path, value, named):
    match = f"^config.json: quantization_config.*{re.escape(named)}"
    with pytest.raises(ModelLoadError, match=match) as caught:
        _read(_changed(path, value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("hf_fp8", {"fmt": "e5m2"}, "fmt is 'e5m2'; supported: 'e4m3'"),
        ("hf_fp8", {"activation_scheme": "static"}, "activation_scheme is 'static'; supported: 'd"),
        ("hf_fp8", {"weight_block_size": [128]}, "weight_block_size is [128]; it must be two"),
        ("hf_fp8", {"weight_block_size": [0, 8]}, "weight_block_size is 0; it must be an integer"),
        ("hf_fp8", {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list"),
        ("awq", {"bits": 8}, "bits is 8; supported: 4"),
        ("awq", {"version": "gemv"}, "version is 'gemv'; supported: 'gemm'"),
        ("awq", {"group_size": None}, "quantization_config.group_size is None; it must be"),
        ("gptq", {"modules_in_block_to_quantize": "mlp"}, "modules_in_block_to_quantize must be"),
        ("gptq", {"bits": 3}, "bits is 3; supported: 4, 8"),
        ("gptq8", {"sym": False}, "sym is False; supported: True"),
        ("gptq8", {"desc_act": True}, "desc_act is True; supported: False"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ("gptq", {"dynamic": {"+:.*": {"bits": 8}}}, "mixed formats are not supported"),
        ("gptq", {"lm_head": True}, "lm_head is true; a quantized head"),
        ("w8a8", {"ignore": []}, "lm_head is quantized with its inputs"),
    ],
)
def test_so_are_those_of_other_programs(name, changes, named):
    mapping = CONFIG.to_hf() | {"quantization_config": FORMATS[name].config | changes}
    with pytest.raises(ModelLoadError, match=f"^config.json: .*{re.escape(named)}") as caught:
        ModelConfig.from_hf(mapping, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["awq", 3, ["compressed-tensors"]])
def test_a_config_that_is_no_object_is_refused(value):
    with pytest.raises(ModelLoadError, match="quantization_config must be an object"):
        _read(value)


@pytest.mark.parametrize(
    ("name", "value"), [("inputs", "x"), ("inputs", 3), ("block", 32), ("block", (1,))]
)
def test_a_value_that_is_no_form_is_named(name, value):
    form = Quantization("int8")
    object.__setattr__(form, name, value)  # the tests check the types of arguments first
    with pytest.raises(ValueError, match=f"^{name} must be "):
        form.__post_init__()


def test_projections_alone_are_integers_and_none_that_is_ignored():
    paths = {"model.embed_tokens", "model.norm", "lm_head"}
    layers = [f"model.layers.{i}." for i in (0, 1, 11)]
    for layer in layers:
        paths |= {layer + name for name in ("self_attn.q_proj", "mlp.down_proj")}
        paths |= {layer + name for name in ("self_attn.q_proj_bias", "input_layernorm")}

    def taken(*ignore):
        return {path for path in paths if Quantization("int8", ignore=ignore).takes(path)}

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
    for quantize in (jax.jit(quantize_weight, static_argnums=1), quantize_weight):
        node = quantize(jnp.asarray(weight), ALL)
        np.testing.assert_array_equal(node["weight"], integers)
        np.testing.assert_array_equal(node["scale"], scale)
    assert node["weight"][5, :6].tolist() == [127, 0, 2, -2, 0, 126]
    assert node["scale"][3] == 1
    assert np.isnan(quantize_weight(jnp.full((2, 2), jnp.nan), ALL)["scale"]).all()


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_that_does_not_fit_names_a_way_out_that_works(name):
    """The narrow experts fit none, and these sizes fit no blocks of 128."""
    experts = ModelConfig.from_directory(BUNDLED_MODELS["bundled-experts"])
    with pytest.raises(ValueError, match=rf"^quantization='{name}': .*; no scheme fits; leave it"):
        with_scheme(experts, name)
    fit = ["int8", "FP8_DYNAMIC", "W8A8"]
    if name in fit:
        assert with_scheme(tiny.config(), name).quantization == SCHEMES[name]
        return
    with pytest.raises(ValueError, match=rf"; schemes that fit: {', '.join(fit)}$"):
        with_scheme(tiny.config(), name)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_scales_are_split_as_the_outputs_are(num_devices):
    config = tiny.config(num_key_value_heads=2, quantization=Quantization("int8"))
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
    config = tiny.config(quantization=Quantization("int8"), tie_word_embeddings=False)
    params = init_params(config, jax.random.key(0), "bfloat16")
    described = abstract_params(config, "bfloat16")
    assert jax.tree.structure(params) == jax.tree.structure(described)
    for (path, leaf), (_, like) in zip(flatten(params), flatten(described), strict=True):
        assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype), path


_COMPILED = """
import dataclasses
import jax, jax.numpy as jnp
from jaxinfer import Quantization, abstract_params, forward, ModelConfig
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS

config = ModelConfig.from_directory(BUNDLED_MODELS["bundled"])
form = Quantization("int8", inputs="token")
config = dataclasses.replace(config, num_hidden_layers=6, quantization=form)
step = jax.jit(lambda params, ids: forward(params, config, ids))
ids = jax.ShapeDtypeStruct((1, 64), jnp.int32)
step.lower(abstract_params(config, jnp.float16), ids).compile()
"""


@pytest.mark.slow
def test_float16_layers_with_quantized_inputs_compile_one_after_the_other():
    """Without a barrier before each rounding XLA repeats all layers before it, and never ends."""
    optimized = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    subprocess.run([sys.executable, "-c", _COMPILED], env=optimized, check=True, timeout=200)
