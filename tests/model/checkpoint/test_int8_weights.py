"""Directories of int8 weights: loaded, sharded, refused by name, saved and converted."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from jaxinfer.convert import main as convert
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import orbax_files, weights
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name
from jaxinfer.model.checkpoint.safetensors_file import write_file
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny
from tests.model.checkpoint.test_weights import assert_trees_equal
from tests.model.quantized.test_quantization import QUANTIZATION

CONFIG = tiny.config(tie_word_embeddings=False, quantization=Quantization("int8"))
CONFIG_PLAIN = tiny.config(tie_word_embeddings=False)
_UP = "model.layers.1.mlp.up_proj.weight"


def int8_tensors(scale_dtype="float32"):
    """Tensors as their files name them, drawn anew, and the tree that they are."""
    rng, tensors, leaves = np.random.default_rng(0), {}, {}
    for path, leaf in flatten(tiny.params(CONFIG_PLAIN)):
        name, plain = tensor_name(path), np.asarray(leaf)
        tensors[name] = leaves[path] = plain
        if path.endswith("_proj"):
            del leaves[path]
            integers = rng.integers(-128, 128, plain.shape).astype(np.int8)
            scale = rng.uniform(1e-4, 1e-2, (len(plain), 1)).astype(jnp.dtype(scale_dtype))
            tensors |= {name: integers, f"{name}_scale": scale}
            leaves[f"{path}.weight"] = integers
            leaves[f"{path}.scale"] = scale[:, 0].astype(np.float32)
    return tensors, leaves


def write(directory, tensors, quantization=QUANTIZATION):
    write_file(directory / "model.safetensors", tensors.items(), tensors)
    config = CONFIG_PLAIN.to_hf() | {"quantization_config": quantization}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def load(directory, dtype="float32", mesh=None):
    return load_params(directory, ModelConfig.from_directory(directory), dtype, mesh)


@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_integers_are_loaded_as_they_are_and_scales_in_float32(dtype, scale_dtype, tmp_path):
    tensors, leaves = int8_tensors(scale_dtype)
    loaded = dict(flatten(load(write(tmp_path, tensors), dtype)))
    assert loaded.keys() == leaves.keys()
    for path, expected in leaves.items():
        is_plain = not path.endswith((".weight", ".scale"))
        assert loaded[path].dtype == (dtype if is_plain else expected.dtype), path
        np.testing.assert_array_equal(loaded[path], expected.astype(loaded[path].dtype))


def test_each_device_gets_its_slice_of_integers_and_scales(tmp_path):
    tensors, leaves = int8_tensors()
    mesh = make_mesh(4)
    loaded = dict(flatten(load(write(tmp_path, tensors), mesh=mesh)))
    expected = dict(flatten(abstract_params(CONFIG, jnp.float32, mesh)))
    for path, leaf in loaded.items():
        assert leaf.sharding == expected[path].sharding, path
        np.testing.assert_array_equal(leaf, leaves[path])
    local = {path: leaf.addressable_shards[0].data.shape for path, leaf in loaded.items()}
    attention = "model.layers.0.self_attn"
    assert local[f"{attention}.q_proj.weight"] == (16, 32)
    assert local[f"{attention}.q_proj.scale"] == (16,)
    assert local[f"{attention}.k_proj.scale"] == (16,), "2 kv heads on 4 devices: whole"
    assert local["model.layers.0.mlp.down_proj.weight"] == (32, 12)
    assert local["model.layers.0.mlp.down_proj.scale"] == (32,)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({f"{_UP}_scale": None}, r"lacks '.*up_proj\.weight_scale', which"),
        ({f"{_UP}_zero_point": np.zeros((48, 1), np.int8)}, r"weight_zero_point' is not in"),
        ({f"{_UP}_scale": np.ones(48, np.float32)}, r"weight_scale has shape \(48,\), .*\(48, 1\)"),
        ({f"{_UP}_scale": np.ones((48, 2), np.float32)}, r"weight_scale has shape \(48, 2\)"),
        ({f"{_UP}_scale": np.ones((48, 1), np.int8)}, r"weight_scale has dtype int8, .*float32"),
        ({_UP: np.ones((48, 32), np.float32)}, r"weight has dtype float32, .* implies int8"),
        ({_UP: np.ones((48, 32), np.uint8)}, r"weight has dtype uint8, .* implies int8"),
        ({_UP: np.ones((48, 8), np.int32)}, r"weight has shape \(48, 8\), config.json implies"),
        ({"lm_head.weight": np.ones((64, 32), np.int8)}, "lm_head.weight has dtype int8"),
    ],
)
def test_headers_that_are_not_the_formats_are_refused_before_memory_is_taken(
    change, named, tmp_path, monkeypatch
):
    tensors = {k: v for k, v in (int8_tensors()[0] | change).items() if v is not None}
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    with pytest.raises(ModelLoadError, match=named) as caught:
        load(write(tmp_path, tensors))
    assert str(tmp_path) in str(caught.value)


def test_integers_of_a_config_that_names_no_format_are_refused(tmp_path):
    tensors = {n: t for n, t in int8_tensors()[0].items() if not n.endswith("_scale")}
    with pytest.raises(ModelLoadError, match=r"has dtype int8, config\.json implies float32 or"):
        load(write(tmp_path, tensors, None))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_scale_that_is_zero_or_not_finite_is_named(value, num_devices, tmp_path):
    tensors, _ = int8_tensors()
    tensors[f"{_UP}_scale"][17] = value
    named = r"model\.safetensors: .*up_proj\.weight_scale holds scales that are zero or"
    with pytest.raises(ModelLoadError, match=named):
        load(write(tmp_path, tensors), mesh=make_mesh(num_devices))


def test_scales_of_an_orbax_checkpoint_are_checked_too(tmp_path):
    params = load(write(tmp_path, int8_tensors()[0]))
    up_proj = params["model"]["layers"]["1"]["mlp"]["up_proj"]
    up_proj["scale"] = up_proj["scale"].at[3].set(0)
    orbax_files.save(params, tmp_path)
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight_scale holds scales that"):
        load(tmp_path)


def test_a_tree_is_saved_as_it_is_loaded(tmp_path):
    params = quantize_params(tiny.params(CONFIG_PLAIN, "bfloat16"), CONFIG.quantization)
    save_params(params, CONFIG, tmp_path)
    read_back = ModelConfig.from_directory(tmp_path)
    assert (read_back.dtype, read_back.quantization) == ("bfloat16", CONFIG.quantization.saved())
    assert_trees_equal(load(tmp_path, "bfloat16"), params)
    with safetensors.safe_open(tmp_path / "model.safetensors", "np") as file:
        scale = file.get_tensor(f"{_UP}_scale")
        assert (scale.shape, scale.dtype) == ((48, 1), np.float32)
        assert file.get_tensor(_UP).dtype == np.int8


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (CONFIG_PLAIN, r"params have model\.\S+_proj quantized, which config's quantization, None"),
        (
            tiny.config(tie_word_embeddings=False, quantization=Quantization("int8", ignore=())),
            "lm_head plain",
        ),
    ],
)
def test_a_tree_that_is_not_its_configs_is_not_saved(config, named, tmp_path):
    params = quantize_params(tiny.params(CONFIG_PLAIN), CONFIG.quantization)
    with pytest.raises(ValueError, match=named):
        save_params(params, config, tmp_path)
    assert not any(tmp_path.iterdir())


def test_convert_keeps_integers_and_their_config(tmp_path):
    source, orbax, again = (tmp_path / name for name in ("source", "orbax", "again"))
    source.mkdir()
    write(source, int8_tensors()[0])
    assert convert([str(source), str(orbax), "--quiet"]) == 0
    assert orbax_files.is_checkpoint(orbax)
    assert convert([str(orbax), str(again), "--quiet", "--dtype", "bfloat16"]) == 0
    for directory, dtype in ((orbax, "float32"), (again, "bfloat16")):
        loaded, expected = load(directory, dtype), load(source, dtype)
        jax.tree.map(np.testing.assert_array_equal, loaded, expected)
        assert loaded["model"]["layers"]["0"]["mlp"]["up_proj"]["weight"].dtype == np.int8
    for directory in (orbax, again):
        config = json.loads((directory / "config.json").read_text())
        assert config["quantization_config"] == QUANTIZATION
