"""What a GGUF file's metadata ask for is converted, or refused by name."""

import itertools

import numpy as np
import pytest

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.gguf.config import read_config
from jaxinfer.model.checkpoint.gguf.header import GgufHeader, read_header
from jaxinfer.model.checkpoint.gguf.tensors import tree_paths
from jaxinfer.model.checkpoint.gguf.tokenizer import make_tokenizer, read_vocabulary
from jaxinfer.model.rope_scaling import RopeScaling
from tests.model.checkpoint.gguf import files

SIZES = {
    "context_length": 512,
    "embedding_length": 256,
    "feed_forward_length": 64,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10_000.0,
}
EMBEDDING = {"token_embd.weight": ("F32", np.zeros((512, 32), np.float32))}


def config_of(path, changes, tensors=(), architecture="llama"):
    fields = {"general.architecture": architecture}
    fields |= {f"{architecture}.{key}": value for key, value in SIZES.items()}
    fields |= {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5}
    files.write(path, fields | changes, EMBEDDING | dict(tensors))
    return read_config(read_header(path), "bfloat16")


def test_sizes_and_ends_are_read(tmp_path):
    config = config_of(tmp_path / "x", {})
    assert (config.vocab_size, config.hidden_size, config.head_dim) == (512, 256, 64)
    assert (config.eos_token_ids, config.bos_token_id) == ((2, 5), None)
    assert (config.rms_norm_eps, config.rope_theta, config.dtype) == (1e-5, 10_000.0, "bfloat16")
    assert config.tie_word_embeddings
    others = {"llama.attention.key_length": 32, "llama.attention.value_length": 32}
    assert config_of(tmp_path / "y", others).head_dim == 32
    multi_head = config_of(tmp_path / "z", {"llama.attention.head_count_kv": None})
    assert multi_head.num_key_value_heads == 4
    output = {"output.weight": EMBEDDING["token_embd.weight"]}
    assert not config_of(tmp_path / "u", {}, output).tie_word_embeddings
    nothing = {"llama.expert_count": 0, "llama.attention.causal": True}
    nothing["llama.tensor_data_layout"] = "Meta AI original pth"
    assert config_of(tmp_path / "v", nothing) == config


def test_yarn_is_read(tmp_path):
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 16.0}
    changes = {f"llama.rope.scaling.{key}": value for key, value in keys.items()}
    config = config_of(tmp_path / "x", changes)
    assert config.rope_scaling == RopeScaling(4.0, 128, beta_fast=16.0)


def test_qwen2_has_the_names_of_its_biases(tmp_path):
    biases = {f"blk.0.attn_{name}.bias": ("F32", np.zeros(8, np.float32)) for name in "qkv"}
    fields = {"general.architecture": "qwen2"}
    files.write(tmp_path / "x", fields, EMBEDDING | biases)
    paths = tree_paths(read_header(tmp_path / "x"))
    assert {f"model.layers.0.self_attn.{name}_proj_bias" for name in "qkv"} < set(paths)
    assert config_of(tmp_path / "y", {}, architecture="qwen2").model_type == "qwen2"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"general.architecture": "gemma3"}, r"is 'gemma3'; these are converted: llama, .*qwen3"),
        ({"general.architecture": "clip"}, "the projector of a multimodal model"),
        ({"general.type": "mmproj"}, "the projector of a multimodal model"),
        ({"general.type": "adapter"}, "an adapter .LoRA., not a model"),
        ({"adapter.type": "lora"}, "an adapter .LoRA., not a model"),
        ({"general.type": "imatrix"}, "general.type is 'imatrix', not a model"),
        ({"split.count": 3}, "one of 3 parts; merge them first"),
        ({"llama.context_length": None}, "lacks llama.context_length"),
        ({"llama.embedding_length": "big"}, "embedding_length 'big'"),
        ({"llama.attention.head_count": 0}, "head_count is 0"),
        ({"llama.attention.head_count": [4, 4]}, "head_count is a list, which is not"),
        ({"llama.block_count": 2**31}, "num_hidden_layers"),
        ({"llama.attention.head_count_kv": 3}, "multiple of num_key_value_heads"),
        ({"llama.rope.dimension_count": 32}, "rope.dimension_count is 32, and heads have 64"),
        ({"llama.attention.value_length": 32}, "value_length is 32, and heads have 64"),
        ({"llama.rope.scaling.type": "linear"}, "scaling.type is 'linear'; yarn is converted"),
        ({"llama.rope.scaling.factor": 2.0}, "scaling.type is 'linear'; yarn is converted"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "has llama.rope.scaling.attn_factor, which"),
        ({"llama.rope.scale_linear": 2.0}, "has llama.rope.scale_linear, which is not converted"),
        ({"llama.expert_count": 8}, "has llama.expert_count, which is not converted"),
        ({"llama.attention.sliding_window": 4096}, "has llama.attention.sliding_window"),
        ({"llama.attention.causal": False}, "causal is false"),
        ({"llama.tensor_data_layout": "other"}, "llama.tensor_data_layout is 'other'"),
        ({"llama.logit_scale": 2.0}, "has llama.logit_scale"),
        ({"tokenizer.ggml.eos_token_id": 512}, "eos_token_id"),
    ],
)
def test_what_is_not_converted_is_named(tmp_path, changes, cause):
    with pytest.raises(ModelLoadError, match=cause) as caught:
        config_of(tmp_path / "x.gguf", changes)
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "x.gguf") in str(caught.value)


@pytest.mark.parametrize("scaling", ["yarn", "llama3"])
def test_odd_values_are_refused_or_read_but_nothing_else(tmp_path, scaling):
    fields = {"general.architecture": "llama", "general.type": "model", "split.count": 1}
    own = {**SIZES, "attention.key_length": 64, "rope.dimension_count": 64}
    own |= {"attention.causal": True, "tensor_data_layout": "Meta AI original pth"}
    own["rope.scaling.type"] = "none"
    tensors = dict(EMBEDDING)
    if scaling == "yarn":
        keys = {"type": "yarn", "factor": 2.0, "original_context_length": 128}
        own |= {f"rope.scaling.{key}": value for key, value in keys.items()}
    else:
        tensors["rope_freqs.weight"] = "F32", files.llama3_factors(files.LLAMA3)
    fields |= {f"llama.{key}": value for key, value in own.items()}
    fields |= {f"tokenizer.ggml.{key}": value for key, value in files.vocabulary().items()}
    fields["tokenizer.ggml.token_type"] = np.array(fields["tokenizer.ggml.token_type"])
    files.write(tmp_path / "x", {"general.architecture": "llama"}, tensors)
    found, refused = read_header(tmp_path / "x").tensors, set()
    assert read_config(GgufHeader(tmp_path / "x", fields, found), "bfloat16").rope_scaling
    odd = ("x", "", -1, 0, 2**63, 1e300, float("nan"), True, [], ["a"], np.arange(3), np.ones(0))
    for key, (i, value) in itertools.product(fields, enumerate(odd)):
        header = GgufHeader(tmp_path / "x", fields | {key: value}, found)
        try:
            read_config(header, "bfloat16")
            make_tokenizer(read_vocabulary(header))
        except ModelLoadError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused.add((key, i))
    assert len(odd) * len(fields) // 2 < len(refused) < len(odd) * len(fields)


def test_factors_of_rotations_are_llama_3s_or_refused(tmp_path):
    factors = files.llama3_factors(files.LLAMA3)
    own = {"rope_freqs.weight": ("F32", factors)}
    scaling = config_of(tmp_path / "x", {}, own).rope_scaling
    assert scaling is not None
    assert scaling.to_hf() == {k: v for k, v in files.LLAMA3.items() if k != "rope_theta"}
    ones = {"rope_freqs.weight": ("F32", np.ones(32, np.float32))}
    assert config_of(tmp_path / "y", {}, ones).rope_scaling is None
    for other in (factors[::-1], factors[16:], factors * 1.01, np.full(32, np.nan, np.float32)):
        with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight scales rotations, and not"):
            config_of(tmp_path / "z", {}, {"rope_freqs.weight": ("F32", other)})


def test_a_tensor_of_another_kind_of_model_is_named(tmp_path):
    experts = {"blk.0.ffn_gate_exps.weight": EMBEDDING["token_embd.weight"]}
    files.write(tmp_path / "x", {"general.architecture": "llama"}, EMBEDDING | experts)
    with pytest.raises(ModelLoadError, match=r"'blk\.0\.ffn_gate_exps\.weight' is no part"):
        tree_paths(read_header(tmp_path / "x"))
