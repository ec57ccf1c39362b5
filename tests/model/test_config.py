"""A config.json is read in both spellings, and anything we can't run is refused in one line."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.rope_scaling import RopeScaling
from tests.lazy import transformers
from tests.model import tiny

# config.json of Qwen/Qwen3-0.6B as published, and what the other sizes change.
QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def read(**changes) -> ModelConfig:
    return ModelConfig.from_hf(QWEN3_0_6B | changes, "config.json")


def test_published_config_is_read_field_by_field():
    config = read()
    assert config.vocab_size == 151936
    assert (config.hidden_size, config.intermediate_size) == (1024, 3072)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (16, 8, 128)
    assert config.num_hidden_layers == 28
    assert (config.rms_norm_eps, config.rope_theta) == (1e-6, 1e6)
    assert config.tie_word_embeddings
    assert not config.attention_bias
    assert config.dtype == "bfloat16"
    assert (config.eos_token_ids, config.bos_token_id) == ((151645,), 151643)
    assert config.max_context_length == 40960


@pytest.mark.parametrize(
    "size",
    [
        {"hidden_size": 2048, "intermediate_size": 6144},  # 1.7B
        {"hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 36},  # 4B
        {"hidden_size": 4096, "num_attention_heads": 32, "tie_word_embeddings": False},  # 8B
        {"hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40},  # 14B
        {"hidden_size": 5120, "num_attention_heads": 64, "num_hidden_layers": 64},  # 32B
    ],
)
def test_every_published_size_is_read(size):
    config = read(**size)
    assert {name: getattr(config, name) for name in size} == size


def test_transformers_5_spelling_gives_the_same_config():
    spelled = {k: v for k, v in QWEN3_0_6B.items() if k not in ("rope_theta", "torch_dtype")}
    spelled |= {
        "dtype": "bfloat16",
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "layer_types": ["full_attention"] * 28,
    }
    assert ModelConfig.from_hf(spelled, "config.json") == read()


def test_yarn_is_read_from_both_spellings():
    expected = RopeScaling(factor=4.0, original_max_position_embeddings=32768)
    older = read(
        rope_scaling={"type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}
    )
    newer = read(rope_parameters=YARN | {"rope_theta": 1e6})
    assert older == newer
    assert older.rope_scaling == expected
    assert older.max_context_length == 131072


def test_yarn_added_to_a_config_of_transformers_5_is_applied_and_theta_stays():
    """As a model card says to add it; transformers itself would take its default theta then."""
    spelled = {name: value for name, value in QWEN3_0_6B.items() if name != "rope_theta"}
    spelled |= {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    both = ModelConfig.from_hf(spelled | {"rope_scaling": YARN}, "config.json")
    assert both == read(rope_scaling=YARN)
    assert both.rope_scaling is not None


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"partial_rotary_factor": 1.0}, {}),
        ({"rope_scaling": {"rope_type": "default", "factor": None}}, {}),
        ({"rope_scaling": YARN | {"partial_rotary_factor": 1.0}}, {"rope_scaling": YARN}),
        (
            {"rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 1e6}},
            {"rope_scaling": YARN},
        ),
    ],
)
def test_what_changes_nothing_may_be_said(change, same):
    assert read(**change) == read(**same)


def test_yarn_without_an_original_length_takes_the_models_like_transformers():
    config = read(rope_scaling={"rope_type": "yarn", "factor": 2.0})
    assert config.rope_scaling.original_max_position_embeddings == 40960


def test_to_hf_is_read_back_by_us_and_by_transformers():
    for config in (tiny.CONFIG, read(rope_scaling=YARN, eos_token_id=[1, 2])):
        mapping = json.loads(json.dumps(config.to_hf()))
        assert ModelConfig.from_hf(mapping, "again") == config
        theirs = transformers.Qwen3Config(**mapping)
        assert theirs.head_dim == config.head_dim
        assert theirs.num_key_value_heads == config.num_key_value_heads
        assert theirs.rope_parameters["rope_theta"] == config.rope_theta
        assert theirs.rope_parameters.get("factor") == (
            config.rope_scaling.factor if config.rope_scaling else None
        )


def test_config_is_a_static_argument():
    assert hash(read(rope_scaling=YARN)) == hash(read(rope_scaling=YARN))
    with pytest.raises(dataclasses.FrozenInstanceError):
        read().vocab_size = 3


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"model_type": "qwen3_moe"}, "architectures is .*supported: Qwen3MoeForCausalLM"),
        ({"model_type": None}, "has no model_type.*Qwen3ForCausalLM"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "supported: Qwen3ForCausalLM"),
        ({"architectures": "Qwen3"}, "architectures"),
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1"),
        ({"vocab_size": "151936"}, "vocab_size must be a whole number"),
        ({"vocab_size": True}, "vocab_size"),
        ({"hidden_size": 10**15}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 1e3}, "num_hidden_layers"),
        ({"num_attention_heads": []}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_attention_heads .16. must be a multiple"),
        ({"head_dim": 7}, "head_dim must be even"),
        ({"head_dim": 0}, "head_dim"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rope_theta": 0.5}, "rope_theta must be above 1"),
        ({"rope_theta": None}, "missing rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"torch_dtype": "int8"}, "dtype must be one of"),
        ({"torch_dtype": ["bfloat16"]}, "dtype must be one of"),
        ({"eos_token_id": 151936}, "eos_token_id must be a whole number from 0 to 151935"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["sliding_attention"]}, "sliding-window"),
        ({"layer_types": 7}, "layer_types"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config.quant_method"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            {"rope_scaling": {"rope_type": "dynamic"}},
            "'dynamic' is not supported .supported: default",
        ),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1"),
        (
            {"rope_parameters": YARN | {"partial_rotary_factor": 0, "rope_theta": 1e6}},
            "partial_rotary_factor must be 1",
        ),
        (
            {"rope_parameters": YARN | {"rope_theta": 1e6}, "rope_scaling": YARN | {"factor": 2.0}},
            "rope_parameters and rope_scaling contradict each other: factor is 4.0 in one and 2.0",
        ),
        (
            {"rope_parameters": YARN | {"rope_theta": 1e6}, "rope_scaling": {"type": "default"}},
            "contradict each other: rope_type is 'yarn' in one and 'default' in the other",
        ),
        (
            {"rope_parameters": {"rope_theta": 5e5}, "rope_scaling": YARN},
            "contradict each other: rope_theta is 500000.0 in one and 1000000 in the other",
        ),
        ({"rope_parameters": 3}, "rope_parameters must be an object"),
        (
            {"rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768}},
            "has 'factor', 'original_max_position_embeddings' and no rope_type that uses it; for",
        ),
        (
            {"rope_parameters": {"full_attention": YARN | {"rope_theta": 1e6}}},
            "has 'full_attention' and no rope_type",
        ),
        ({"rope_scaling": YARN | {"attn_factor": "1"}}, "attn_factor must be a positive number"),
        (
            {"rope_scaling": YARN | {"attn_factor": 0.9, "attention_factor": 1.0}},
            "has attention_factor and attn_factor; leave one out",
        ),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "needs a factor"),
        ({"rope_scaling": YARN | {"factor": 0.5}}, "factor must be at least 1"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "factor must be a positive number"),
        ({"rope_scaling": YARN | {"beta_fast": 1, "beta_slow": 2}}, "beta_fast"),
        ({"rope_scaling": YARN | {"attention_factor": -1.0}}, "attention_factor"),
        ({"rope_scaling": YARN | {"truncate": 1}}, "truncate"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "original_max_position"),
        ({"rope_scaling": YARN | {"short_factor": []}}, "unknown keys for yarn: short_factor"),
    ],
)
def test_what_we_cannot_run_is_refused_by_name(changes, cause):
    with pytest.raises(ModelLoadError, match=cause) as caught:
        read(**changes)
    message = str(caught.value)
    assert message.startswith("config.json: ")
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("name", ["vocab_size", "num_key_value_heads", "hidden_size"])
def test_a_missing_size_is_named(name):
    mapping = {key: value for key, value in QWEN3_0_6B.items() if key != name}
    with pytest.raises(ModelLoadError, match=f"missing {name}"):
        ModelConfig.from_hf(mapping, "config.json")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "not JSON"),
        ("<!DOCTYPE html><html>", "not JSON"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "not JSON"),
        (" " * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_a_damaged_config_file_is_named(text, cause, tmp_path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=cause) as caught:
        ModelConfig.from_directory(tmp_path)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_undecodable_and_missing_config_files_are_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"config\.json: no such file"):
        ModelConfig.from_directory(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelLoadError, match=r"config\.json: not JSON"):
        ModelConfig.from_directory(tmp_path)


_ROPE_KEYS = st.sampled_from(
    [
        "type",
        "rope_type",
        "rope_theta",
        "factor",
        "attn_factor",
        "partial_rotary_factor",
        "truncate",
    ]
)
_VALUES = st.sampled_from([None, True, 0, 1, 1.0, 4.0, -1, 1e6, "yarn", "default", [], {}, "1"])
_ROPE = st.dictionaries(_ROPE_KEYS, _VALUES, max_size=5) | _VALUES


@settings(deadline=None, max_examples=300)
@given(_ROPE, _ROPE)
def test_any_rope_objects_are_read_or_refused(parameters, scaling):
    try:
        config = read(rope_parameters=parameters, rope_scaling=scaling)
    except ModelLoadError:
        return
    kinds = {part.get("rope_type", part.get("type")) for part in (parameters, scaling) if part}
    assert (config.rope_scaling is not None) == ("yarn" in kinds)
