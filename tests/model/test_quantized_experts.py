"""A model whose experts are blocks of float8: its files, its tree, its answers."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams, forward
from jaxinfer.errors import ModelLoadError
from jaxinfer.kernels import fp8
from jaxinfer.measure import random_weights
from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.checkpoint import weights
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts
from jaxinfer.model.quantized.params import dequantize_weight, quantize_params
from jaxinfer.model.quantized.quantization import Quantization, plain_path, with_scheme
from jaxinfer.model.sharding import check_divisible, make_mesh
from jaxinfer.planning.operations import weight_bytes_per_device
from jaxinfer.planning.shapes import ModelShape
from tests.model import tiny

PLAIN = tiny.config(
    model_type="qwen3_moe",
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=128,
    experts=Experts(num_experts=4, experts_per_token=2, intermediate_size=256),
)
CONFIG = with_scheme(PLAIN, "fp8")
UP = "model.layers.1.mlp.experts.3.up_proj"
_PROMPTS = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (2, 9, 17)]
_GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def plain():
    """Weights large enough that greedy choices mean something, in blocks of different sizes."""
    tree = tiny.params(PLAIN)
    return jax.tree.map(lambda x: x * jnp.linspace(2, 9, x.shape[-1]) if x.ndim > 1 else x, tree)


@pytest.fixture(scope="module")
def params(plain):
    return quantize_params(plain, CONFIG.quantization)


def write(directory, params, changes=(), scale_dtype=jnp.bfloat16, **config):
    """Qwen's files, byte by byte: every expert's codes and `weight_scale_inv`.

    Scales are rounded, as those of such files are; returns them so.
    """
    tensors = {}
    for path, leaf in flatten(params):
        plain, part, leaf = plain_path(path), path.rpartition(".")[2], np.asarray(leaf)
        suffix = ".weight_scale_inv" if (plain != path and part == "scale") else ".weight"
        leaf = leaf.astype(scale_dtype) if suffix != ".weight" else leaf
        name = plain.removesuffix(".weight")
        if ".experts." in path:
            for number, one in enumerate(leaf):
                numbered = name.replace(".experts.", f".experts.{number}.")
                tensors[numbered + suffix] = one
        else:
            tensors[name + suffix] = leaf
    tensors |= dict(changes)
    names = {"float32": "F32", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3"}
    header, data = {}, b""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        end = len(data) + tensor.nbytes
        about = {"shape": tensor.shape, "data_offsets": [len(data), end]}
        header[name] = {"dtype": names[str(tensor.dtype)], **about}
        data += tensor.tobytes()
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"],
    }
    mapping = PLAIN.to_hf() | {"quantization_config": quantization | config}
    (directory / "config.json").write_text(json.dumps(mapping))
    return directory


def load(directory, mesh=None):
    config = ModelConfig.from_directory(directory)
    return load_params(directory, config, "float32", mesh)


@pytest.mark.parametrize("devices", [None, 2])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_files_of_qwens_are_stacked_and_scales_become_float32(params, dtype, devices, tmp_path):
    write(tmp_path, params, scale_dtype=dtype)
    loaded = load(tmp_path, None if devices is None else make_mesh(devices))

    def stored(path, leaf):
        return leaf.astype(dtype).astype(jnp.float32) if path.endswith(".scale") else leaf

    expected = unflatten({path: stored(path, leaf) for path, leaf in flatten(params)})
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)
    gate = loaded["model"]["layers"]["0"]["mlp"]["experts"]["gate_proj"]
    assert (gate["weight"].dtype, gate["scale"].dtype) == (fp8.FP8, jnp.float32)
    assert gate["scale"].shape == (4, 2, 1)


def test_a_load_holds_no_leaf_of_experts_twice(params, tmp_path, monkeypatch):
    copied, own_copy = [], weights._own_copy

    def copy(view, dtype):
        copied.append((type(view).__name__, view.shape))
        return own_copy(view, dtype)

    write(tmp_path, params)
    monkeypatch.setattr(weights, "_own_copy", copy)
    load(tmp_path, make_mesh(2))
    stacks = [shape for name, shape in copied if name == "Stack"]
    assert stacks.count((4, 128, 128)) == 2 * 2 * 3  # halves of the width, on two devices
    assert stacks.count((4, 1, 1)) == 2 * 2 * 3
    assert not any(len(shape) == 3 for name, shape in copied if name != "Stack")


_NOT = {
    "no scale": ({f"{UP}.weight_scale_inv": None}, rf"lacks '{UP}.weight_scale_inv', which"),
    "misshapen scale": (
        {f"{UP}.weight_scale_inv": np.ones((1, 2), jnp.bfloat16)},
        rf"{UP}.weight_scale_inv has shape \(1, 2\), config.json implies \(2, 1\)",
    ),
    "plain": ({f"{UP}.weight": np.ones((256, 128), jnp.bfloat16)}, "implies float8_e4m3fn"),
    "plain among codes": (
        {
            f"{UP}.weight": np.ones((256, 128), np.float32),
            f"{UP}.weight_scale_inv": None,
        },
        rf"'{UP}.weight' is plain, and others beside it are fp8; copy the checkpoint again",
    ),
    "a router": (
        {"model.layers.0.mlp.gate.weight": np.ones((4, 128), fp8.FP8)},
        r"layers.0.mlp.gate.weight has dtype float8_e4m3fn, config.json implies float32 or",
    ),
    "a router's scale": (
        {"model.layers.0.mlp.gate.weight_scale_inv": np.ones((1, 1), jnp.bfloat16)},
        r"'model.layers.0.mlp.gate.weight_scale_inv' is not in config.json's model",
    ),
}


@pytest.mark.parametrize(("change", "named"), _NOT.values(), ids=_NOT)
def test_other_files_are_refused_before_memory_is_taken(
    change, named, params, tmp_path, monkeypatch
):
    write(tmp_path, params, change)
    monkeypatch.setattr(weights, "_to_devices", pytest.fail)
    with pytest.raises(ModelLoadError, match=named) as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scale_of_zero_is_found(params, tmp_path):
    write(tmp_path, params, {f"{UP}.weight_scale_inv": np.zeros((2, 1), jnp.bfloat16)})
    with pytest.raises(ModelLoadError, match=r"up_proj.* holds scales that are zero or"):
        load(tmp_path)


def test_what_is_saved_is_read_back(params, tmp_path):
    save_params(params, CONFIG, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, load(tmp_path), params)


def test_plain_files_are_quantized_as_they_are_loaded(plain, params, tmp_path):
    save_params(plain, PLAIN, tmp_path)
    loaded = load_params(tmp_path, CONFIG, "float32")
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


@pytest.mark.parametrize("scheme", ["int8", "int4", "FP8_DYNAMIC", "W8A8", "W4A16_ASYM"])
def test_other_forms_are_refused(scheme):
    with pytest.raises(ValueError, match="fp8 in blocks of 128 by 128 with dynamic inputs"):
        with_scheme(PLAIN, scheme)


def test_experts_that_blocks_cut_are_refused():
    experts = dataclasses.replace(PLAIN.experts, intermediate_size=64)
    narrow = dataclasses.replace(PLAIN, experts=experts)
    with pytest.raises(ValueError, match=r"experts\.gate_proj: its 64 outputs are no"):
        with_scheme(narrow, "fp8")


def test_a_share_of_half_a_block_names_the_degrees_that_work():
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = dataclasses.replace(CONFIG, **heads)
    with pytest.raises(ValueError, match=r"experts.gate_proj: its 64 .*; sizes that work: 1, 2$"):
        check_divisible(config, 4)
    check_divisible(config, 4, 4)
    check_divisible(config, 4, 2)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_plan_counts_codes_and_scales(devices):
    shape = ModelShape.from_values(dataclasses.asdict(CONFIG))
    described = jax.tree.leaves(abstract_params(CONFIG, "bfloat16", make_mesh(devices)))
    held = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in described
    )
    assert weight_bytes_per_device(shape, "bfloat16", devices) == held
    assert shape.expert_bytes(2) == 2 * 3 * (256 * 128 + 2 * 4)


def test_logits_are_near_those_of_the_plain_weights(params, plain):
    """Inputs are rounded; of the unquantized model they differ by more."""
    dequantized = jax.tree.map(
        lambda x: dequantize_weight(x, "float32") if isinstance(x, dict) else x,
        params,
        is_leaf=lambda x: isinstance(x, dict) and "scale" in x,
    )
    ids = jnp.asarray(np.random.default_rng(0).integers(0, PLAIN.vocab_size, (2, 24)))
    found, near, far = (
        np.asarray(forward(tree, config, ids))
        for tree, config in ((params, CONFIG), (dequantized, PLAIN), (plain, PLAIN))
    )
    assert np.abs(found - near).mean() < 0.2 * np.abs(near).mean()
    assert np.abs(found - near).mean() < np.abs(found - far).mean()


@pytest.fixture(scope="module")
def expected(params):
    """Greedy answers by whole forward passes."""
    run, found = jax.jit(forward, static_argnums=1), []
    for prompt in _PROMPTS:
        ids = list(prompt["prompt_token_ids"])
        for _ in range(_GREEDY.max_tokens):
            padded = jnp.asarray([ids + [0] * (32 - len(ids))])
            ids.append(int(run(params, CONFIG, padded)[0, len(ids) - 1].argmax()))
        found.append(ids[-_GREEDY.max_tokens :])
    return found


def _serve(**arguments):
    options = {"max_model_len": 32, "max_num_seqs": 4, "skip_tokenizer_init": True}
    return LLM(**options, **arguments)


def _answers(llm):
    return [each.outputs[0].token_ids for each in llm.generate(_PROMPTS, _GREEDY, use_tqdm=False)]


@pytest.mark.slow
def test_an_engine_answers_as_the_forward_pass_does_and_takes_plain_updates(
    params, plain, expected
):
    other = jax.tree.map(np.negative, plain)
    with _serve(params=plain, config=PLAIN, quantization="fp8") as llm:
        assert _answers(llm) == expected
        held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
        assert llm.report.weight_bytes == held
        llm.update_params(other)
        assert _answers(llm) != expected
        llm.update_params(plain)
        assert _answers(llm) == expected


@pytest.mark.slow
@pytest.mark.parametrize("experts", [False, True])
def test_devices_share_them(params, expected, experts):
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": experts}
    with _serve(params=params, config=CONFIG, **options) as llm:
        assert _answers(llm) == expected


def test_random_experts_are_made_as_codes(monkeypatch):
    monkeypatch.setattr(random_weights, "shape_config", lambda _: PLAIN)
    made = random_weights.random_weights("30b-a3b", {"quantization": "fp8"})
    assert made["quantization"] is None
    assert made["config"] == CONFIG
    for node in made["params"]["model"]["layers"]["0"]["mlp"]["experts"].values():
        assert node["weight"].dtype == fp8.FP8
        wide = dequantize_weight(node, "float32")
        assert 0.018 < float(wide.std()) < 0.022


def test_form_is_the_one_that_files_say(params, tmp_path):
    config = ModelConfig.from_directory(write(tmp_path, params))
    form = Quantization("fp8", (128, 128), inputs="group", stored="fp8")
    assert dataclasses.replace(config.quantization, ignore=form.ignore) == form
