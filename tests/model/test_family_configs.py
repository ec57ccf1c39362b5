"""What published models' config.json say is read, in old spelling and new; the rest is refused."""

import math

import pytest

from jaxinfer import ModelConfig
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.experts import Experts
from jaxinfer.model.families.table import FAMILIES, family_of
from jaxinfer.model.hf_overrides import apply_overrides
from jaxinfer.model.longrope import LongRopeScaling
from tests.model import small_models

_SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}
_FACTORS = {"short_factor": [1.0] * 24, "long_factor": [2.0] * 24}
_PHI4_MINI = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "rope_scaling": {"type": "longrope"} | _FACTORS,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
}
_MINISTRAL = {
    "rope_type": "yarn",
    "type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "max_position_embeddings": 262144,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
    "rope_theta": 1e6,
}

_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}


def read(**changes):
    return ModelConfig.from_hf(_SIZES | changes, "config.json")


def test_experts_are_in_every_layer_unless_the_file_says_otherwise():
    """Qwen3-30B-A3B's fields, which transformers 5 writes with one more name."""
    assert read(**_MOE).experts == Experts(128, 8, 768, True)
    renamed = {"num_local_experts" if n == "num_experts" else n: v for n, v in _MOE.items()}
    assert read(**renamed) == read(**_MOE, decoder_sparse_step=1, mlp_only_layers=[])
    assert read(**_MOE, mlp_only_layers=[2, 0, 9]).experts.dense_layers == (0, 2)
    assert read(**_MOE, decoder_sparse_step=2).experts.dense_layers == (0, 2)
    every = read(**_MOE, decoder_sparse_step=3, mlp_only_layers=[2]).experts
    assert every.dense_layers == (0, 1, 2, 3)
    given = {name: _MOE[name] for name in ("model_type", "head_dim")}
    assert read(**given).experts == Experts(128, 8, 768, False)  # as transformers


def test_phi_4_mini_rotates_three_quarters_of_a_head_by_longrope():
    config = read(**_PHI4_MINI)
    assert (config.rotary_dim, config.head_dim, config.max_context_length) == (48, 64, 131072)
    assert config.rope_scaling == LongRopeScaling(
        (1.0,) * 24, (2.0,) * 24, 4096, math.sqrt(1 + math.log(32) / math.log(4096)), True
    )
    assert config == read(**_PHI4_MINI | {"rope_scaling": {"type": "su"} | _FACTORS})
    assert ModelConfig.from_hf(config.to_hf(), "again") == config


@pytest.mark.parametrize(("length", "is_long"), [(None, True), (4097, True), (4096, False)])
def test_the_longest_text_served_chooses_longropes_factors(length, is_long):
    config = read(**_PHI4_MINI).for_context(length)
    assert config.rope_scaling.is_long is is_long
    assert config.rope_scaling.scaled([1.0] * 24, 1e4)[0][0] == (0.5 if is_long else 1.0)


def test_other_scalings_do_not_depend_on_the_longest_text():
    config = read(model_type="llama", rope_scaling=small_models.LLAMA3)
    assert config.for_context(8) == config


def test_qwen2_has_no_window_unless_it_is_in_use():
    window = {"sliding_window": 131072, "max_window_layers": 28, "use_sliding_window": False}
    config = read(model_type="qwen2", **window)
    assert family_of("qwen2").layer_kinds(config)[0].biases == ("q_proj", "k_proj", "v_proj")


def test_smollm3_rotates_three_layers_of_four():
    assert read(model_type="smollm3").unrotated_layers == (3,)
    assert read(model_type="smollm3", no_rope_layers=[0, 1, 1, 0]).unrotated_layers == (0, 3)
    theta = {name: value for name, value in _SIZES.items() if name != "rope_theta"}
    config = ModelConfig.from_hf(theta | {"model_type": "smollm3"}, "config.json")
    assert (config.rope_theta, config.tie_word_embeddings) == (2e6, True)
    assert family_of("smollm3").with_layers(config, [1, 3]).unrotated_layers == (1,)


@pytest.mark.parametrize("kind", ["mistral", "ministral3"])
def test_a_multimodal_mistral_says_in_text_config_what_its_texts_are(kind):
    rope = _MINISTRAL if kind == "ministral3" else None
    text = _SIZES | {"model_type": kind, "rope_theta": 1e6, "rope_parameters": rope}
    mapping = {
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": {},
        "dtype": "bfloat16",
    }
    config = ModelConfig.from_hf(mapping, "config.json")
    assert (config.hidden_size, config.rope_theta, config.dtype) == (256, 1e6, "bfloat16")
    assert config.to_hf()["model_type"] == kind
    changed = apply_overrides(mapping, {"max_position_embeddings": 512, "dtype": "float32"})
    config = ModelConfig.from_hf(changed, "config.json")
    assert (config.max_position_embeddings, config.dtype) == (512, "float32")


def test_qwen3_vls_rotation_of_texts_is_the_usual_one():
    rope = {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"}
    text = _SIZES | {"model_type": "qwen3_vl_text", "head_dim": 128, "rope_scaling": rope}
    mapping = {"model_type": "qwen3_vl", "text_config": text, "tie_word_embeddings": True}
    config = ModelConfig.from_hf(mapping, "config.json")
    assert (config.rope_scaling, config.tie_word_embeddings) == (None, True)


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"mistral3", "qwen3_vl"}))
@pytest.mark.parametrize("missing", [name for name in _SIZES if name.endswith("size")])
def test_a_required_key_that_is_missing_is_named(family, missing):
    mapping = {name: value for name, value in _SIZES.items() if name != missing}
    with pytest.raises(ModelLoadError, match=rf"^config.json: missing {missing}$"):
        ModelConfig.from_hf(mapping | {"model_type": family}, "config.json")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model_type": "mistral", "sliding_window": 2048}, "sliding_window 2048, max_position"),
        ({"model_type": "phi3", "sliding_window": 2047}, "sliding-window attention is not support"),
        ({"model_type": "mistral", "sliding_window": True}, "sliding_window must be a whole"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "smollm3", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1, 0]}, "a 0 or 1 for each layer"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1, 0, True]}, "a 0 or 1 for each layer"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval must"),
        ({"model_type": "llama", "partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.01}, "an even number of 64 dimensions"),
        ({"model_type": "phi3", "partial_rotary_factor": 1.5}, "an even number of 64 dimensions"),
        ({"model_type": "phi3", "partial_rotary_factor": "all"}, "must be a positive number"),
        (_PHI4_MINI | {"partial_rotary_factor": 0.5}, "short_factor must have 16 numbers, got 24"),
        (
            _PHI4_MINI | {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "longrope needs long_factor",
        ),
        (
            _PHI4_MINI | {"rope_scaling": {"type": "longrope", "beta": 1} | _FACTORS},
            "unknown keys for longrope: beta",
        ),
        (
            _PHI4_MINI | {"rope_scaling": {"type": "longrope"} | _FACTORS | {"short_factor": 1}},
            "short_factor must be a list",
        ),
        (
            _PHI4_MINI
            | {"rope_scaling": {"type": "longrope"} | _FACTORS | {"long_factor": [0.0] * 24}},
            "long_factor must be a positive number",
        ),
        (
            {"model_type": "mistral", "rope_parameters": _MINISTRAL},
            "unknown keys for yarn: llama_4_scaling_beta, max_position_embeddings",
        ),
        (
            {"model_type": "ministral3", "rope_parameters": {"llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta needs a rope_scaling of type yarn",
        ),
        (_MOE | {"num_experts": 0}, "num_experts must be a whole number from 1 to 4096, got 0"),
        (
            _MOE | {"num_experts_per_tok": 129},
            "num_experts_per_tok must be a whole number from 1 to",
        ),
        (_MOE | {"moe_intermediate_size": 0.5}, "moe_intermediate_size must be a whole number"),
        (_MOE | {"norm_topk_prob": "yes"}, "norm_topk_prob must be true or false"),
        (_MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step must be a whole number from 1"),
        (_MOE | {"mlp_only_layers": "all"}, "mlp_only_layers must be a list"),
        (_MOE | {"mlp_only_layers": [True]}, "mlp_only_layers must be a whole number"),
        (_MOE | {"hidden_act": "gelu"}, "hidden_act must be 'silu', got 'gelu'"),
        (_MOE | {"use_sliding_window": True}, "use_sliding_window"),
        (
            _MOE | {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
            "models with experts take plain weights, or fp8 in blocks of 128 by 128",
        ),
        ({"model_type": "qwen3_vl"}, "text_config must be an object"),
        ({"model_type": "mistral3", "text_config": {"model_type": "llama"}}, "text_config.model_t"),
        (
            {
                "model_type": "qwen3_vl",
                "tie_word_embeddings": True,
                "text_config": {"tie_word_embeddings": False},
            },
            "tie_word_embeddings is True, and False in text_config",
        ),
        ({"model_type": "gemma3", "vision_config": {}}, "'gemma3', a multimodal model"),
    ],
)
def test_what_a_family_can_not_do_is_refused_by_name(changes, cause):
    with pytest.raises(ModelLoadError, match=cause):
        read(**changes)


def test_tensors_of_another_family_are_refused_before_memory_is_taken(tmp_path):
    small_models.save(tmp_path, **small_models.FAMILIES["Phi3-0"])
    config = read(**{**small_models.config("Mistral").to_dict(), "sliding_window": None})
    with pytest.raises(ModelLoadError, match="tensors are missing, the first is"):
        load_params(tmp_path, config, "float32")
