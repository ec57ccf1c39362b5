"""Shapes come from a directory, a file, a name or the hub's cache; mistakes are one line."""

import dataclasses
import json
import re

import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS
from jaxinfer.planning.model_files import read_shape, shape_from_hf
from jaxinfer.planning.named_shapes import NAMED_SHAPES, shape_config
from jaxinfer.planning.operations import weight_bytes_per_device

_MOE = {
    "model_type": "qwen3_moe",
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
}
_LLAMA = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}


def test_config_files_give_the_published_shapes():
    assert shape_from_hf(_MOE, "f") == NAMED_SHAPES["Qwen3-30B-A3B"]
    assert shape_from_hf(_LLAMA, "f") == NAMED_SHAPES["Llama-2-7B"]
    sizes = {"hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64}
    widths = {"intermediate_size": 12_288, "moe_intermediate_size": 1536}
    assert shape_from_hf(_MOE | sizes | widths, "f") == NAMED_SHAPES["Qwen3-235B-A22B"]
    dense = shape_config("8b").to_hf()
    assert shape_from_hf(dense, "f") == NAMED_SHAPES["Qwen3-8B"]


def test_overrides_change_a_file_and_a_published_shape_alike(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(shape_config("8b").to_hf()))
    overrides = {"num_hidden_layers": 3, "max_position_embeddings": 99}
    shape = dataclasses.replace(NAMED_SHAPES["Qwen3-8B"], **overrides)
    assert read_shape("Qwen3-8B", overrides) == ("Qwen3-8B", shape)
    assert read_shape(tmp_path, overrides)[1] == shape
    with pytest.raises(TypeError, match="hf_overrides must be a dict"):
        read_shape("Qwen3-8B", [1])


def test_a_directory_and_its_file_are_the_same_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(_LLAMA))
    assert read_shape(tmp_path)[1] == read_shape(str(tmp_path / "config.json"))[1]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "llama.json").symlink_to(tmp_path / "config.json")
    assert read_shape(tmp_path / "elsewhere" / "llama.json")[1] == read_shape(tmp_path)[1]


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_a_bundled_models_weights_are_its_files(name):
    found, shape = read_shape(name)
    assert (found, shape) == (name, read_shape(BUNDLED_MODELS[name])[1])
    stored = sum(file.stat().st_size for file in BUNDLED_MODELS[name].glob("*.safetensors"))
    # The file has a header beside the weights.
    assert weight_bytes_per_device(shape, shape.dtype, 1) == pytest.approx(stored, rel=0.01)


@pytest.mark.parametrize("name", ["Qwen3-8B", "qwen3-8b", "Qwen/Qwen3-8B"])
def test_names_are_found_with_and_without_their_owner(name):
    assert read_shape(name) == ("Qwen3-8B", NAMED_SHAPES["Qwen3-8B"])


def test_a_name_of_another_owner_is_another_model():
    assert read_shape("meta-llama/Llama-2-7b-hf")[0] == "Llama-2-7B"
    with pytest.raises(ModelLoadError, match="no published shape"):
        read_shape("someone/Qwen3-8B")


def test_a_hub_id_is_found_in_the_cache(tmp_path, monkeypatch):
    cached = tmp_path / "config.json"
    cached.write_text(json.dumps(_LLAMA))
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda name, file, revision: asked.append((name, file, revision)) or str(cached),
    )
    assert read_shape("someone/else") == ("someone/else", NAMED_SHAPES["Llama-2-7B"])
    assert asked == [("someone/else", "config.json", None)]


@pytest.mark.parametrize("name", ["nosuch", "a/b/c", "", "../x"])
def test_an_unknown_model_says_what_is_accepted(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=re.escape("config.json")) as caught:
        read_shape(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            "model_type is 'gpt2'; plans are for llama, ministral3, mistral, ",
        ),
        ({"hidden_size": "x"}, "hidden_size must be a whole number"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size must be a whole number"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok must be a whole number from 1 to 128"),
        ({"mlp_only_layers": [-1]}, "mlp_only_layers must be a whole number from 0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        (
            {"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
            "models with experts take plain weights, or fp8 in blocks of 128 by 128",
        ),
        ({"torch_dtype": "int8"}, "dtype must be one of"),
        ({"head_dim": None, "num_attention_heads": 0}, "num_attention_heads must be a whole"),
    ],
)
def test_what_cannot_be_counted_is_refused(changes, message):
    with pytest.raises(ModelLoadError, match=f"^f: .*{re.escape(message)}"):
        shape_from_hf(_MOE | changes, "f")


def test_a_gguf_file_is_to_be_converted_first(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="a GGUF file; convert it first: jaxinfer convert"):
        read_shape(str(file))
