"""Leaves made of parts of tensors, or of several, where files are not named as the tree is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.parameter_names import flatten, tensor_name
from jaxinfer.model.checkpoint.safetensors_file import read_header, write_file
from jaxinfer.model.checkpoint.source_plan import Source, Tensor, one_tensor_each
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.families import qwen3
from jaxinfer.model.families.table import FAMILIES
from jaxinfer.model.modules import abstract_params
from jaxinfer.model.quantized.params import quantize_params, quantize_weight
from jaxinfer.model.quantized.quantization import Quantization
from jaxinfer.model.sharding import make_mesh
from tests.model import tiny
from tests.model.checkpoint.test_weights import assert_trees_equal

FUSED = dataclasses.replace(tiny.CONFIG, model_type="fused")
PARTS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def _plan(config, shapes, names):
    """Phi's fused projections; and each down_proj in two tensors of half its inputs."""
    plan = one_tensor_each(shapes, names, tensor_name)
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for whole, parts in PARTS.items():
            sizes = [shapes[prefix + part][0] for part in parts]
            tensor = Tensor(f"{prefix}{whole}.weight", (sum(sizes), config.hidden_size))
            ends = np.cumsum(sizes)
            for part, size, end in zip(parts, sizes, ends, strict=True):
                rows = slice(end - size, end)
                plan[prefix + part] = Source((tensor,), lambda whole, rows=rows: whole[rows])
        outputs, inputs = shapes[f"{prefix}mlp.down_proj"]
        halves = [Tensor(f"{prefix}mlp.down.{i}", (outputs, inputs // 2)) for i in (0, 1)]
        plan[f"{prefix}mlp.down_proj"] = Source(
            tuple(halves), lambda *halves: np.concatenate(halves, axis=1)
        )
    return plan


@pytest.fixture
def tensors(monkeypatch):
    """What a family's files hold, and the family."""
    family = dataclasses.replace(qwen3.FAMILY, make_plan=_plan)
    monkeypatch.setitem(FAMILIES, "fused", family)
    named = {tensor_name(path): np.asarray(leaf) for path, leaf in flatten(tiny.params(FUSED))}
    for layer in range(FUSED.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for whole, parts in PARTS.items():
            rows = [named.pop(f"{prefix}{part}.weight") for part in parts]
            named[f"{prefix}{whole}.weight"] = np.concatenate(rows)
        halves = np.split(named.pop(f"{prefix}mlp.down_proj.weight"), 2, axis=1)
        named |= {f"{prefix}mlp.down.{i}": half for i, half in enumerate(halves)}
    return named


def _write(directory, tensors):
    write_file(directory / "model.safetensors", tensors.items(), tensors)
    return directory


@pytest.mark.parametrize("num_devices", [None, 1, 2])
def test_fused_tensors_are_cut_and_several_are_joined(tensors, num_devices, tmp_path):
    mesh = None if num_devices is None else make_mesh(num_devices)
    seen = []
    loaded = load_params(
        _write(tmp_path, tensors), FUSED, "float32", mesh, progress=lambda *at: seen.append(at)
    )
    assert_trees_equal(loaded, tiny.params(FUSED))
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert seen[-1] == (total, total), "a tensor of three leaves counts once"
    if mesh is not None:
        expected = dict(flatten(abstract_params(FUSED, jnp.float32, mesh)))
        for path, leaf in flatten(loaded):
            assert leaf.sharding == expected[path].sharding, path


def test_fused_integers_are_cut_with_their_scales(tensors, tmp_path):
    quantization = Quantization("int8", ignore=("lm_head", "re:.*down_proj")).saved()
    config = dataclasses.replace(FUSED, quantization=quantization)
    for layer in range(FUSED.num_hidden_layers):
        for projection in (*PARTS, "self_attn.o_proj"):
            name = f"model.layers.{layer}.{projection}.weight"
            node = jax.tree.map(
                np.asarray, quantize_weight(jnp.asarray(tensors[name]), quantization)
            )
            tensors |= {name: node["weight"], f"{name}_scale": node["scale"][:, None]}
    loaded = load_params(_write(tmp_path, tensors), config, "float32")
    expected = quantize_params(tiny.params(FUSED), quantization)
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [
        ("mlp.down.1", None, r"tensor '.*mlp\.down\.1' is missing"),
        ("self_attn.q_proj.weight", np.ones((2, 2)), r"q_proj\.weight' is not in config\.json's"),
        ("mlp.down.0", np.ones((2, 2)), r"mlp\.down\.0 has shape \(2, 2\), config\.json implies"),
        ("self_attn.qkv_proj.weight", "int8", "has dtype int8, config.json implies float32 or"),
        ("self_attn.qkv_proj.weight", "float8_e4m3fn", "has dtype float8_e4m3fn, config.json"),
    ],
)
def test_headers_are_compared_with_the_plan_before_memory_is_taken(
    name, value, cause, tensors, tmp_path, monkeypatch
):
    name = f"model.layers.1.{name}"
    if value is None:
        del tensors[name]
    else:
        is_dtype = isinstance(value, str)
        tensors[name] = tensors[name].astype(jnp.dtype(value)) if is_dtype else np.float32(value)
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    with pytest.raises(ModelLoadError, match=cause):
        load_params(_write(tmp_path, tensors), FUSED, "float32")


@pytest.mark.parametrize(
    "dtype",
    [
        *("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"),
        *("int8", "uint8", "int32", "int64"),
    ],
)
def test_every_dtype_is_read_as_it_was_written(dtype, tmp_path):
    tensor = np.arange(-4, 8).reshape(3, 4).astype(jnp.dtype(dtype))
    _write(tmp_path, {"x": tensor})
    entry = read_header(tmp_path / "model.safetensors")["x"]
    assert entry.dtype == tensor.dtype
    np.testing.assert_array_equal(entry.mapped(), tensor)


def test_a_weight_that_is_not_finite_is_named_as_in_the_file(tensors, tmp_path):
    tensors["model.layers.0.mlp.gate_up_proj.weight"][3, 4] = np.nan
    with pytest.raises(ModelLoadError, match=r"gate_up_proj\.weight holds NaN or infinity"):
        load_params(_write(tmp_path, tensors), FUSED, "float32")
