"""Writes GGUF files, with the package gguf, of small random models that transformers makes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxinfer.model.checkpoint.gguf.header import TYPES
from tests.lazy import torch
from tests.model import small_models
from tests.model.text.small_tokenizer import PLAIN, SPECIAL, build_backend

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.05,  # of about the size that random blocks have
}
LLAMA3 = small_models.LLAMA3 | {"original_max_position_embeddings": 8192}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_KINDS = {"normal": 1, "control": 3, "user": 4}


def gguf() -> Any:
    return pytest.importorskip("gguf")


def llama_order(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp stores those of a Llama."""
    halves = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def hugging_face_order(rows: np.ndarray, num_heads: int) -> np.ndarray:
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def blocks(values: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The values in a type's bytes, or random bytes of it where gguf can only read it."""
    package = gguf()
    number = package.GGMLQuantizationType[kind]
    if not kind.endswith("_K"):
        return package.quants.quantize(values, number)
    size, num_bytes = package.GGML_QUANT_SIZES[number]
    shape = (*values.shape[:-1], values.shape[-1] // size, num_bytes)
    data = rng.integers(0, 256, shape, dtype=np.uint8)
    halves = data.view(np.float16)
    if kind == "Q6_K":
        halves[..., -1] = 3e-5
    else:
        halves[..., :2] = 1e-4, 8e-4
    return data.reshape(*values.shape[:-1], -1)


def vocabulary() -> dict[str, Any]:
    """Metadata of a byte-level tokenizer, by their keys without the prefix."""
    backend = build_backend()
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    kinds = {**dict.fromkeys(SPECIAL, "control"), **dict.fromkeys(PLAIN, "user")}
    merges = json.loads(backend.to_str())["model"]["merges"]
    return {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": tokens,
        "token_type": [_KINDS[kinds.get(token, "normal")] for token in tokens],
        "merges": [" ".join(merge) for merge in merges],
        "bos_token_id": tokens.index("<|endoftext|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "add_bos_token": False,
    }


def metadata(config: Any, architecture: str) -> dict[str, Any]:
    """Those of a model, of what transformers calls its config."""
    sizes = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": SIZES["head_dim"],
        "attention.value_length": SIZES["head_dim"],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.dimension_count": SIZES["head_dim"],
    }
    return {
        "general.architecture": architecture,
        "general.type": "model",
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in vocabulary().items()},
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


def write(path: Path, fields: dict[str, Any], tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Write a file.

    Args:
        path: of the file.
        fields: metadata; None leaves one out.
        tensors: type and values, or bytes, by name.
    """
    package = gguf()
    writer = package.GGUFWriter(str(path), fields["general.architecture"])
    for key, value in fields.items():
        if key != "general.architecture" and value is not None:
            _add_field(writer, key, value)
    for name, (kind, data) in tensors.items():
        number = package.GGMLQuantizationType[kind]
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_field(writer: Any, key: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(key, value)


def tensors_of(model: Any, architecture: str, seed: int) -> dict[str, tuple[str, np.ndarray]]:
    """A model's tensors, of all types in turn; its own weights become what the file holds."""
    package, rng = gguf(), np.random.default_rng(seed)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    if architecture != "llama":
        heads = {}
    tensors, state = {}, model.state_dict()
    for i, (name, parameter) in enumerate(model.named_parameters()):
        path, _, kind = name.rpartition(".")
        last = path.removeprefix("model.layers.").partition(".")
        own = _NAMES.get(path) or f"blk.{last[0]}.{_NAMES[last[2]]}"
        values = parameter.detach().numpy()
        num_heads = heads.get(path.rpartition(".")[2])
        if num_heads:
            values = llama_order(values, num_heads)
        dtype = TYPES[i % len(TYPES)] if values.ndim > 1 else "F32"
        data = blocks(values, dtype, rng)
        tensors[f"{own}.{kind}"] = dtype, data
        read = package.quants.dequantize(data, package.GGMLQuantizationType[dtype])
        if num_heads:
            read = hugging_face_order(read, num_heads)
        state[name].copy_(torch.from_numpy(np.ascontiguousarray(read, np.float32)))
    return tensors


def write_model(path: Path, family: str, **changes: Any) -> Any:
    """Write a model's file; returns the model of transformers with the weights that it holds."""
    model = small_models.build(family=family, **(SIZES | changes))
    architecture = family.lower()
    fields, tensors = metadata(model.config, architecture), tensors_of(model, architecture, 1)
    if model.config.rope_parameters["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = "F32", llama3_factors(model.config.rope_parameters)
    write(path, fields, tensors)
    return model


def llama3_factors(rope: dict[str, Any]) -> np.ndarray:
    """As llama.cpp's converter computes them: float32 ``[D / 2]``."""
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    dim = SIZES["head_dim"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    smooth = (original / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(waves > original / low, factor, between)
    return np.where(waves < original / high, 1, factors).astype(np.float32)
