"""Every format of quantized weights: from files written by its definition to the tree and back."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.mismatches import check_mismatches
from jaxinfer.model.quantized.params import dequantize_weight
from jaxinfer.model.quantized.quantization import Quantization, with_scheme
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny
from tests.model.quantized.stored import CONFIG, FORMATS, checkpoint, write

OF_EACH_KIND = ("pack_zeros", "awq", "gptq_order")
_UP = "model.layers.1.mlp.up_proj"


def load(directory, mesh=None):
    config = ModelConfig.from_directory(directory)
    return load_params(directory, config, "float32", mesh), config


def _assert_stands_for(loaded, plain):
    dequantized = dict(flatten(tiny.plain_params(loaded, jnp.float32)))
    assert dequantized.keys() == plain.keys()
    for path, leaf in dequantized.items():
        np.testing.assert_array_equal(leaf, plain[path], err_msg=path)


@pytest.mark.parametrize("name", FORMATS)
def test_files_are_the_weights_that_their_format_defines(name, tmp_path):
    tensors, plain = checkpoint(name)
    loaded, config = load(write(tmp_path, name, tensors))
    _assert_stands_for(loaded, plain)
    described = abstract_params(config, "float32")
    assert jax.tree.structure(loaded) == jax.tree.structure(described)
    for (path, leaf), (_, like) in zip(flatten(loaded), flatten(described), strict=True):
        assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype), path


@pytest.mark.parametrize("name", ["w8a8_static", "fp8_block", "pack_zeros", "pack_order"])
def test_each_device_gets_its_part(name, tmp_path):
    tensors, plain = checkpoint(name)
    mesh = make_mesh(4)
    loaded, config = load(write(tmp_path, name, tensors), mesh)
    expected = dict(flatten(abstract_params(config, jnp.float32, mesh)))
    for path, leaf in flatten(loaded):
        assert leaf.sharding == expected[path].sharding, path
    _assert_stands_for(jax.tree.map(lambda leaf: jnp.asarray(jax.device_get(leaf)), loaded), plain)
    down = {
        name: leaf.addressable_shards[0].data.shape
        for name, leaf in loaded["model"]["layers"]["0"]["mlp"]["down_proj"].items()
    }
    assert down["weight"] == (64, 16 if name.startswith("pack") else 32)
    assert down["scale"] == {"w8a8_static": (64,), "fp8_block": (4, 2), "pack_zeros": (64, 2)}.get(
        name, (64, 8)
    ), "inputs in any order may be in any group"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in OF_EACH_KIND else pytest.mark.slow("alone"))
        for name, each in FORMATS.items()
        if each.inputs is None
    ],
)
def test_logits_are_those_of_the_plain_weights(name, tmp_path):
    tensors, plain = checkpoint(name)
    loaded, config = load(write(tmp_path, name, tensors))
    tokens, run = tiny.token_ids(CONFIG, 2, 12), jax.jit(forward, static_argnums=1)
    tree = unflatten({path: jnp.asarray(leaf) for path, leaf in plain.items()})
    expected = run(tree, CONFIG, tokens)
    np.testing.assert_array_equal(run(loaded, config, tokens), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_saved_is_read_back(name, tmp_path):
    tensors, plain = checkpoint(name)
    loaded, config = load(write(tmp_path, name, tensors))
    again = tmp_path / "again"
    save_params(loaded, config, again)
    read_back, saved = load(again)
    assert saved.quantization == config.quantization.saved()
    jax.tree.map(np.testing.assert_array_equal, read_back, loaded)
    _assert_stands_for(read_back, plain)


def test_vllms_names_of_fp8s_scales_are_read_too(tmp_path):
    for name in ("hf_fp8", "hf_fp8_static"):
        tensors, plain = checkpoint(name)
        renamed = {
            key.replace("weight_scale_inv", "weight_scale").replace("activation_", "input_"): each
            for key, each in tensors.items()
        }
        (tmp_path / name).mkdir()
        loaded, _ = load(write(tmp_path / name, name, renamed))
        _assert_stands_for(loaded, plain)


def test_scales_may_be_negative(tmp_path):
    tensors, plain = checkpoint("gptq")
    tensors[f"{_UP}.scales"] = -tensors[f"{_UP}.scales"]
    loaded, _ = load(write(tmp_path, "gptq", tensors))
    _assert_stands_for(loaded, plain | {_UP: -plain[_UP]})


_NOT = {
    "no scale": (
        "fp8_block",
        {f"{_UP}.weight_scale": None},
        rf"lacks '{_UP}.weight_scale', which belongs to '{_UP}.weight'; copy the checkpoint again,",
    ),
    "no words": (
        "pack",
        {f"{_UP}.weight_packed": None},
        rf"lacks '{_UP}.weight_packed', which belongs to '{_UP}.weight_",
    ),
    "two scales": (
        "hf_fp8",
        {f"{_UP}.weight_scale": np.ones((8, 4), np.float32)},
        r"'model\.layers\.1\.mlp\.up_proj\.weight_scale' is not in",
    ),
    "misshapen scale": (
        "hf_fp8",
        {f"{_UP}.weight_scale_inv": np.ones((8, 8), np.float32)},
        r"weight_scale_inv has shape \(8, 8\), config.json implies \(8, 4\)",
    ),
    "plain": ("hf_fp8", {f"{_UP}.weight": np.ones((128, 64), np.float32)}, "implies float8_e4m3fn"),
    "no zeros": ("awq", {f"{_UP}.qzeros": None}, rf"lacks '{_UP}.qzeros', which"),
    "misshapen zeros": (
        "gptq_zeros",
        {f"{_UP}.qzeros": np.ones((4, 8), np.int32)},
        r"qzeros has shape \(4, 8\), config.json implies \(4, 16\)",
    ),
    "a router": ("hf_fp8", {"model.layers.0.mlp.gate.weight": np.ones(2, np.int8)}, "is not in"),
    "a head": ("pack", {"lm_head.weight": np.ones((64, 64), np.int8)}, "lm_head.weight has dtype"),
}


_MIXED = {
    "fp8_dynamic": ("weight_scale", "fp8; put '{}' into its ignore"),
    "hf_fp8": ("weight_scale_inv", "fp8; put '{}' into its modules_to_not_convert"),
    "pack": ("weight_packed", "int4; put '{}' into its ignore"),
    "awq": ("qweight", "int4; put '{}' into its modules_to_not_convert"),
}


@pytest.mark.parametrize("name", _MIXED)
def test_a_plain_weight_among_codes_is_named_and_loads_with_the_fix(name, tmp_path, monkeypatch):
    part, fix = _MIXED[name]
    (tensors, plain), plain_weight = checkpoint(name), np.ones((128, 64), np.float32)
    kept = {key: each for key, each in tensors.items() if not key.startswith(f"{_UP}.")}
    assert f"{_UP}.{part}" in tensors
    directory = write(tmp_path, name, kept | {f"{_UP}.weight": plain_weight})
    named = f"model.safetensors: '{_UP}.weight' is plain, .* says {fix.format(_UP)}$"
    with monkeypatch.context() as patch:
        patch.setattr(weights, "_to_devices", pytest.fail)
        with pytest.raises(ModelLoadError, match=named):
            load(directory)
    key = fix.rpartition(" ")[2]
    ignored = [*FORMATS[name].config.get(key, []), _UP]
    loaded, _ = load(
        write(tmp_path, name, kept | {f"{_UP}.weight": plain_weight}, **{key: ignored})
    )
    _assert_stands_for(loaded, plain | {_UP: plain_weight})


@pytest.mark.parametrize("name", ["fp8_dynamic", "hf_fp8"])
def test_plain_files_with_a_quantization_config_are_named(name, tmp_path, monkeypatch):
    tensors, plain = checkpoint(name)
    kept = {key: each for key, each in tensors.items() if "_proj." not in key}
    kept |= {f"{path}.weight": each for path, each in plain.items() if path.endswith("_proj")}
    directory = write(tmp_path, name, kept)
    with monkeypatch.context() as patch:
        patch.setattr(weights, "_to_devices", pytest.fail)
        with pytest.raises(ModelLoadError, match=r"is plain, as all are; take quantization_config"):
            load(directory)
    loaded, _ = load(_with_config(directory, quantization_config=None))
    _assert_stands_for(loaded, plain)


def test_an_ignored_projection_that_lacks_its_bias_is_not_told_to_be_ignored():
    module = "model.layers.0.self_attn.q_proj"
    form = dataclasses.replace(
        Quantization.scheme("int8"), ignore=(module,), stored="pack-quantized"
    )
    sources = {
        module: SimpleNamespace(tensors=(SimpleNamespace(name=f"{module}.weight"),)),
        f"{module}_bias": SimpleNamespace(tensors=(SimpleNamespace(name=f"{module}.bias"),)),
    }
    entries = {f"{module}.weight": SimpleNamespace(file="x", dtype=np.dtype(np.float32))}
    with pytest.raises(ModelLoadError, match=rf"^x: lacks '{module}\.bias', which belongs to"):
        check_mismatches(sources, sources, form, entries)


def _with_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return directory


@pytest.mark.parametrize("name", ["fp8_dynamic", "hf_fp8", "pack", "awq", "gptq"])
@pytest.mark.parametrize("scheme", [None, "int8"])
def test_codes_without_a_quantization_config_are_named(name, scheme, tmp_path, monkeypatch):
    directory = _with_config(write(tmp_path, name, checkpoint(name)[0]), quantization_config=None)
    config = ModelConfig.from_directory(directory)
    config = config if scheme is None else with_scheme(config, scheme)
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    named = (
        r"model\.safetensors: tensor 'model\..*' is of quantized weights, and config\.json has no "
    )
    with pytest.raises(ModelLoadError, match=named + "quantization_config; take config.json from"):
        load_params(directory, config, "float32")


@pytest.mark.parametrize("part", ["self_attn.k_scale", "self_attn.k_proj.v_scale"])
@pytest.mark.parametrize("name", ["fp8_dynamic", "hf_fp8_static"])
def test_scales_of_a_kv_cache_are_left_out_and_a_line_says_so(name, part, tmp_path, caplog):
    tensors = checkpoint(name)[0]
    scales = {f"model.layers.{i}.{part}": np.ones(1, np.float32) for i in range(2)}
    plain, _ = load(write(tmp_path, name, tensors))
    assert not caplog.records
    found, _ = load(write(tmp_path, name, tensors | scales))
    assert jax.tree.all(jax.tree.map(np.array_equal, found, plain))
    (line,) = caplog.messages
    assert f"model.safetensors: 2 KV scales (model.layers.0.{part}, ...) are not used" in line


_HEAD_SCALE = {"lm_head.weight_scale": np.ones((64, 1), np.float32)}
_HEADS = {
    "tied": ("int8", True, {}, "set tie_word_embeddings to false and take lm_head out of"),
    "tied, taken": ("int8", True, {"ignore": []}, "set tie_word_embeddings to false$"),
    "ignored": ("int8", False, {}, "in config.json, take lm_head out of quantization_config's ig"),
    "with inputs": ("fp8_dynamic", False, {}, "save the checkpoint with lm_head left out"),
    "of fp8": ("hf_fp8", True, {}, "save the checkpoint with lm_head left out"),
}


@pytest.mark.parametrize(("name", "is_tied", "changes", "fix"), _HEADS.values(), ids=_HEADS)
def test_the_scale_of_a_head_that_is_plain_is_refused(
    name, is_tied, changes, fix, tmp_path, monkeypatch
):
    directory = write(tmp_path, name, checkpoint(name)[0] | _HEAD_SCALE, **changes)
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    named = f"model.safetensors: tensor 'lm_head.weight_scale' is of a quantized head; .*{fix}"
    with pytest.raises(ModelLoadError, match=named):
        load(_with_config(directory, tie_word_embeddings=is_tied))


def test_the_fix_for_a_head_of_codes_loads_it(tmp_path):
    tensors, plain = checkpoint("int8")
    codes, scale = np.ones((64, 64), np.int8), _HEAD_SCALE["lm_head.weight_scale"]
    tensors |= {"lm_head.weight": codes} | _HEAD_SCALE
    loaded, _ = load(write(tmp_path, "int8", tensors, ignore=[]))
    _assert_stands_for(loaded, plain | {"lm_head": codes * scale})


def test_codes_of_a_projection_that_is_ignored_are_named(tmp_path):
    directory = write(
        tmp_path, "fp8_dynamic", checkpoint("fp8_dynamic")[0], ignore=["lm_head", _UP]
    )
    named = f"'{_UP}.weight_scale' is of quantized weights, and quantization_config's ignore says"
    with pytest.raises(ModelLoadError, match=named):
        load(directory)


@pytest.mark.parametrize(("name", "change", "named"), _NOT.values(), ids=_NOT)
def test_other_headers_are_refused_before_memory_is_taken(
    name, change, named, tmp_path, monkeypatch
):
    tensors = {k: v for k, v in (checkpoint(name)[0] | change).items() if v is not None}
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    with pytest.raises(ModelLoadError, match=named) as caught:
        load(write(tmp_path, name, tensors))
    message = str(caught.value)
    assert str(tmp_path) in message
    assert "\n" not in message


_VALUES = {
    "zero scale": ("hf_fp8", "weight_scale_inv", 0.0, "scales that are zero or not finite"),
    "NaN scale": ("pack_zeros", "weight_scale", np.nan, "scales that are zero or not finite"),
    "NaN weight": ("fp8_dynamic", "weight", np.nan, "NaN or infinity"),
    "input scale": ("fp8_static", "input_scale", -1.0, "a scale that is no positive number"),
    "shape": ("pack", "weight_shape", 65, r"weight_shape is \[65, 64\], config.json implies"),
    "other group": ("gptq_order", "g_idx", 4, r"g_idx names groups outside 0 to 3"),
    "out of order": ("gptq", "g_idx", 3, r"g_idx has groups out of order"),
    "zeros": ("gptq", "qzeros", 5, r"qzeros has zero points other than the middle"),
    "bias": ("gptq", "bias", 1.0, r"bias is not zero"),
}


@pytest.mark.parametrize(("name", "part", "value", "named"), _VALUES.values(), ids=_VALUES)
def test_other_values_are_refused_by_tensor_and_file(name, part, value, named, tmp_path):
    tensors, _ = checkpoint(name)
    changed = tensors[f"{_UP}.{part}"].copy()
    changed.reshape(-1)[0] = value
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors: .*{named}") as caught:
        load(write(tmp_path, name, tensors | {f"{_UP}.{part}": changed}))
    assert f"{_UP}.{part}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_shard_of_blocks_cut_in_two_names_the_degrees_that_work(tmp_path):
    directory = write(tmp_path, "hf_fp8", {}, weight_block_size=[32, 32])
    named = r"tensor_parallel_size 4 does not divide q_proj: its 16 outputs are no multiple of "
    with pytest.raises(ValueError, match=named + r"blocks of 32, .*; sizes that work: 1$"):
        abstract_params(ModelConfig.from_directory(directory), "float32", make_mesh(4))


def test_a_group_that_does_not_divide_is_named(tmp_path):
    directory = write(tmp_path, "awq", {}, group_size=48)
    named = "config.json: quantized weights don't fit the model: q_proj: its 64 inputs are no "
    with pytest.raises(ModelLoadError, match=named + "multiple of groups of 48"):
        ModelConfig.from_directory(directory)


def test_nodes_are_read_as_matrices():
    node = {"weight": jnp.array([[0x21, 0xF8]], jnp.uint8), "scale": jnp.array([0.5])}
    np.testing.assert_array_equal(dequantize_weight(node, "float32"), [[-3.5, -3, 0, 3.5]])
