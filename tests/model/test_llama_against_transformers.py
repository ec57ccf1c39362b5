"""Llamas give Hugging Face's logits and greedy texts: saved by it, loaded and served by us."""

import json

import numpy as np
import pytest

from jaxinfer import ModelConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.weights import load_params, save_params
from jaxinfer.model.rope import rope_frequencies
from tests.lazy import torch, transformers
from tests.model import small_models
from tests.model.reference import (
    assert_logits_equal,
    assert_served_texts_equal,
    our_logits,
    reference_logits,
)

HEAD_DIM = 64


def save_llama(directory, variant, **changes):
    changes = {"family": "Llama", "head_dim": HEAD_DIM} | small_models.LLAMAS[variant] | changes
    return small_models.save(directory, **changes)


@pytest.mark.parametrize("variant", small_models.LLAMAS)
def test_float32_logits_and_greedy_choices_equal_transformers(variant, tmp_path):
    model = save_llama(tmp_path, variant)
    assert_logits_equal(model, tmp_path, (3, 160))


@pytest.mark.parametrize(
    ("variant", "options"),
    [
        pytest.param("untied", {}, marks=pytest.mark.exhaustive),
        ("tied-gqa3", {}),
        pytest.param("all-biases", {}, marks=pytest.mark.exhaustive),
        ("llama3-scaling", {"tensor_parallel_size": 2}),
        ("all-biases", {"tensor_parallel_size": 4}),
    ],
)
def test_served_greedy_texts_equal_transformers(variant, options, tmp_path):
    model = save_llama(tmp_path, variant)
    assert_served_texts_equal(model, tmp_path, **options)


@pytest.mark.parametrize("of_transformers", [4, 5])
@pytest.mark.parametrize("variant", ["untied", "llama3-scaling"])
def test_both_spellings_of_rotations_are_the_same_model(variant, of_transformers, tmp_path):
    save_llama(tmp_path, variant)
    mapping = json.loads((tmp_path / "config.json").read_text())
    rope = dict(mapping.pop("rope_parameters"))
    if of_transformers == 4:
        theta, kind = rope.pop("rope_theta"), rope["rope_type"]
        mapping |= {"rope_theta": theta, "rope_scaling": None if kind == "default" else rope}
    else:
        mapping["rope_parameters"] = rope
    read = ModelConfig.from_hf(mapping, "config.json")
    assert read == ModelConfig.from_directory(tmp_path)
    assert ModelConfig.from_hf(read.to_hf(), "again") == read


def test_frequencies_of_llama3_equal_transformers():
    scaling = small_models.LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}
    scaling["rope_theta"] = 500_000.0
    theirs = transformers.LlamaConfig(head_dim=64, rope_parameters=scaling)
    modeling = transformers.models.llama.modeling_llama
    expected = modeling.LlamaRotaryEmbedding(theirs).inv_freq.numpy()
    config = ModelConfig.from_hf(theirs.to_dict() | {"max_position_embeddings": 131072}, "x")
    ours, scale = rope_frequencies(64, config.rope_theta, config.rope_scaling)
    np.testing.assert_allclose(ours, expected, rtol=3e-7)
    assert (scale, ours.dtype) == (1.0, np.float32)
    assert config.max_context_length == 131072


def test_a_saved_llama_is_read_by_transformers(tmp_path):
    model = save_llama(tmp_path / "theirs", "all-biases")
    config = ModelConfig.from_directory(tmp_path / "theirs")
    params = load_params(tmp_path / "theirs", config, "float32")
    assert "q_norm" not in params["model"]["layers"]["0"]["self_attn"]
    assert params["model"]["layers"]["1"]["mlp"]["up_proj_bias"].shape == (96,)
    save_params(params, config, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again) is type(model)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_the_first_llamas_leave_out_what_has_a_default():
    mapping = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "torch_dtype": "float16",
    }
    config = ModelConfig.from_hf(mapping, "config.json")
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (32, 128, 1e4)
    assert config.max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2' .*LlamaForCausalLM, .*, Qwen3ForCausalLM"),
        ({"model_type": "mllama", "vision_config": {}}, "a multimodal model"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "supported: LlamaForCausalLM"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding-window"),
        ({"mlp_bias": 1}, "mlp_bias must be true or false"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"rope_scaling": small_models.LLAMA3 | {"beta": 1}}, "unknown keys for llama3: beta"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
            "llama3 needs high_freq_factor, original_max",
        ),
        (
            {"rope_scaling": small_models.LLAMA3 | {"high_freq_factor": 1.0}},
            "must exceed low_freq_factor",
        ),
        ({"rope_scaling": small_models.LLAMA3 | {"factor": 0.5}}, "factor must be at least 1"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "'linear' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change, named, tmp_path):
    mapping = transformers.LlamaConfig(num_hidden_layers=2).to_dict()
    mapping |= {"rope_parameters": None, "rope_theta": 1e4} | change
    with pytest.raises(ModelLoadError, match=named):
        ModelConfig.from_hf(mapping, "config.json")


def test_bfloat16_is_as_near_float32_as_transformers_own(tmp_path):
    model = save_llama(tmp_path, "llama3-scaling", dtype=torch.bfloat16)
    token_ids = np.random.default_rng(4).integers(0, 384, (2, 96), dtype=np.int32)
    theirs = reference_logits(model, token_ids)
    exact = reference_logits(model.float(), token_ids)
    ours = our_logits(tmp_path, token_ids, "bfloat16")
    assert np.abs(ours - exact).mean() <= 1.5 * np.abs(theirs - exact).mean()
