"""Plain weights rounded to each form: against definitions, and compressed-tensors' own code."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer.convert import main as convert
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.architecture import abstract_params, init_params
from jaxinfer.model.checkpoint.parameter_names import flatten
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.quantized.params import dequantize_weight, quantize_params, quantize_weight
from jaxinfer.model.quantized.quantization import SCHEMES, Quantization
from jaxinfer.model.sharding import make_mesh
from tests.lazy import torch
from tests.model import small_models, tiny
from tests.model.quantized.stored import CONFIG

FORMS = {
    "int8": Quantization("int8"),
    "int8 groups": Quantization("int8", (1, 16)),
    "fp8": Quantization("fp8", inputs="token"),
    "fp8 blocks": Quantization("fp8", (16, 16), inputs="group"),
    "int4": Quantization("int4", (1, 16)),
    "int4 channel": Quantization("int4"),
    "int4 zeros": Quantization("int4", (1, 16), zero_points=True),
    "int4 order": Quantization("int4", (1, 16), zero_points=True, act_order=True),
}


def _weight(outputs=48, inputs=64):
    weight = np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32)
    weight[3] = 0
    weight[5, 7] = 20
    return weight


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_value_is_as_near_as_its_steps_allow(form):
    weight = _weight()
    for quantize in (jax.jit(quantize_weight, static_argnums=1), quantize_weight):
        node = quantize(jnp.asarray(weight), form)
        shapes = {name: (leaf.shape, str(leaf.dtype)) for name, leaf in node.items()}
        assert shapes == {name: each[:2] for name, each in form.node(*weight.shape).items()}
        again = np.asarray(dequantize_weight(node, "float32"))
        rows, columns = form.block or (1, 64)
        largest = np.abs(weight.reshape(48 // rows, rows, -1, columns)).max(axis=(1, 3))
        largest = np.repeat(np.repeat(largest, rows, axis=0), columns, axis=1)
        # Half a step; the largest of symmetric int4 may be cut by half a step more.
        steps = {"int8": largest / 254, "int4": largest / 7.5, "fp8": np.abs(weight) / 16 + 1e-4}
        assert (np.abs(again - weight) <= steps[form.codes] * 1.001).all()
        assert (np.asarray(node["scale"]) > 0).all()
        np.testing.assert_array_equal(again[3], 0)


def test_zero_points_take_the_range_from_least_to_largest():
    weight = jnp.asarray(np.linspace(-0.5, 1.0, 16, dtype=np.float32)[None])
    node = quantize_weight(weight, Quantization("int4", (1, 16), zero_points=True))
    assert node["zero"].tolist() == [[5]]
    np.testing.assert_allclose(dequantize_weight(node, "float32"), weight, atol=1e-6)


def test_a_checkpoints_scale_of_inputs_can_not_be_made_up():
    with pytest.raises(ValueError, match="a scale of inputs for all tokens comes from a check"):
        quantize_weight(jnp.ones((16, 16)), Quantization("int8", inputs="tensor"))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_random_params_of_a_form_fit_it(form):
    config = dataclasses.replace(CONFIG, quantization=form)
    params = jax.eval_shape(lambda key: init_params(config, key, "bfloat16"), jax.random.key(0))
    found, expected = (
        {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(tree)}
        for tree in (params, abstract_params(config, "bfloat16"))
    )
    assert found == expected


@pytest.mark.parametrize("num_devices", [None, 2])
def test_plain_files_are_quantized_as_they_are_loaded(num_devices, tmp_path):
    mesh = None if num_devices is None else make_mesh(num_devices)
    form = FORMS["fp8 blocks"]
    plain = tiny.params(CONFIG, "bfloat16")
    save_params(plain, CONFIG, tmp_path)
    config = dataclasses.replace(ModelConfig.from_directory(tmp_path), quantization=form)
    loaded = load_params(tmp_path, config, "bfloat16", mesh)
    jax.tree.map(np.testing.assert_array_equal, loaded, quantize_params(plain, form))
    if mesh is not None:
        expected = abstract_params(config, "bfloat16", mesh)
        assert jax.tree.map(lambda leaf: leaf.sharding, loaded) == jax.tree.map(
            lambda leaf: leaf.sharding, expected
        )


def test_plain_weights_are_checked_before_they_are_rounded(tmp_path):
    plain = tiny.params(CONFIG)
    up_proj = plain["model"]["layers"]["1"]["mlp"]["up_proj"]
    plain["model"]["layers"]["1"]["mlp"]["up_proj"] = up_proj.at[3, 4].set(jnp.inf)
    save_params(plain, CONFIG, tmp_path)
    config = dataclasses.replace(CONFIG, quantization=FORMS["int4"])
    with pytest.raises(ModelLoadError, match=r"up_proj\.weight holds NaN or infinity"):
        load_params(tmp_path, config, "float32")


SCHEME_CONFIG = dataclasses.replace(CONFIG, hidden_size=128, head_dim=64, num_key_value_heads=4)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.slow
def test_what_convert_writes_is_read_by_compressed_tensors(scheme, tmp_path):
    safetensors_torch = pytest.importorskip("safetensors.torch")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    source, written = tmp_path / "plain", tmp_path / "quantized"
    save_params(tiny.params(SCHEME_CONFIG, "bfloat16"), SCHEME_CONFIG, source)
    assert convert([str(source), str(written), "--quantize", scheme, "--quiet"]) == 0
    config = ModelConfig.from_directory(written)
    loaded = dict(flatten(load_params(written, config, "bfloat16")))
    given = QuantizationConfig.model_validate(config.to_hf()["quantization_config"])
    (group,) = given.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(given.format)
    tensors = safetensors_torch.load_file(written / "model.safetensors")
    read = 0
    for path in (p for p in dict(flatten(tiny.params(SCHEME_CONFIG))) if p.endswith("_proj")):
        prefix = f"{path}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        weight = compressor.decompress(own, group)["weight"].to(torch.float32).numpy()
        node = {k.removeprefix(prefix): leaf for k, leaf in loaded.items() if k.startswith(prefix)}
        np.testing.assert_array_equal(weight, dequantize_weight(node, "float32"), err_msg=path)
        read += 1
    assert read == 7 * SCHEME_CONFIG.num_hidden_layers


def test_convert_names_what_it_can_not_quantize(tmp_path, capsys):
    source = tmp_path / "plain"
    save_params(tiny.params(CONFIG), CONFIG, source)
    assert convert([str(source), str(tmp_path / "out"), "--quantize", "fp8", "--quiet"]) == 1
    assert "q_proj: its 64 outputs are no multiple of blocks of 128" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    int8 = tmp_path / "int8"
    assert convert([str(source), str(int8), "--quantize", "int8", "--quiet"]) == 0
    assert convert([str(int8), str(tmp_path / "out"), "--quantize", "W8A8", "--quiet"]) == 1
    assert "the model's are int8 already; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("variant", ["Phi3-0", "Qwen3VL-0", "Mistral3-0", "Olmo2-0"])
def test_files_of_other_names_are_converted_and_loaded_again(variant, tmp_path):
    """Fused projections, and text halves, which are saved as the family of this half."""
    source, written = tmp_path / "plain", tmp_path / "int8"
    small_models.save(source, **small_models.FAMILIES[variant])
    assert convert([str(source), str(written), "--quantize", "int8", "--quiet"]) == 0
    plain = load_params(source, ModelConfig.from_directory(source), "float32")
    again = ModelConfig.from_directory(written)
    assert again.quantization == Quantization("int8").saved()
    loaded = load_params(written, again, "float32")
    expected = quantize_params(plain, Quantization("int8"))
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)
