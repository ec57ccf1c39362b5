"""Converts a GGUF file: weights without quantization, config.json, tokenizer and chat template.

llama.cpp pairs neighbours in its rotations where Hugging Face pairs the halves of a head, and
stores the rows of q and k in its order. They are put back here: a model whose rows are in the wrong
order still writes fluent text, and only likelihoods show it.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxinfer.model.checkpoint.parameter_names import unflatten
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.config import ModelConfig

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens


def convert(file: Path, directory: Path, dtype: str = "bfloat16") -> None:
    """Write the model of a GGUF file as a directory, whose weights are in `dtype`.

    Needs the package gguf. Weights are in memory whole, in float32.

    Raises:
        ValueError: the file is of another architecture or tokenizer, or has tensors or a scaling of
            rotations that a plain Llama has not.
    """
    import gguf  # pyright: ignore[reportMissingImports]

    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        tensor.name.removesuffix(".weight"): gguf.quants.dequantize(
            tensor.data, tensor.tensor_type
        ).reshape(tensor.shape[::-1])
        for tensor in reader.tensors
    }
    config = _config(fields, is_tied="output" not in tensors)
    leaves = {path: leaf.astype(np.dtype(dtype)) for path, leaf in _leaves(tensors, config)}
    save_params(unflatten(leaves), config, directory)
    _write_tokenizer(fields, directory)


def _config(fields: dict[str, Any], *, is_tied: bool) -> ModelConfig:
    if fields["general.architecture"] != "llama":
        raise ValueError(f"the file is of {fields['general.architecture']!r}, not of a llama")
    scaling = [name for name in fields if name.startswith("llama.rope.scaling")]
    if scaling:
        raise ValueError(f"the file scales its rotations ({scaling[0]}), which is not converted")
    sizes = {name.removeprefix("llama."): value for name, value in fields.items()}
    heads = sizes["attention.head_count"]
    return ModelConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=sizes["embedding_length"],
        intermediate_size=sizes["feed_forward_length"],
        num_hidden_layers=sizes["block_count"],
        num_attention_heads=heads,
        num_key_value_heads=sizes.get("attention.head_count_kv", heads),
        head_dim=sizes.get("attention.key_length", sizes["embedding_length"] // heads),
        rms_norm_eps=sizes["attention.layer_norm_rms_epsilon"],
        rope_theta=sizes.get("rope.freq_base", 10_000.0),
        max_position_embeddings=sizes["context_length"],
        tie_word_embeddings=is_tied,
        eos_token_ids=(fields["tokenizer.ggml.eos_token_id"],),
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        model_type="llama",
    )


def _leaves(
    tensors: dict[str, np.ndarray], config: ModelConfig
) -> Iterator[tuple[str, np.ndarray]]:
    """Paths and values of the parameters."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in tensors.items():
        *layer, last = name.split(".")
        if last not in _NAMES:
            raise ValueError(f"the file has a tensor {name!r}, which a plain Llama has not")
        prefix = f"model.layers.{layer[1]}." if layer else ""
        if last in heads:
            tensor = rotated_by_halves(tensor, heads[last])
        yield prefix + _NAMES[last], tensor


def rotated_by_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """The rows ``[heads * D, E]`` of q or k in Hugging Face's order, from llama.cpp's."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_tokenizer(fields: dict[str, Any], directory: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Raises:
        ValueError: it is no byte-level BPE, or splits text in an unknown way.
    """
    given = {name.removeprefix("tokenizer.ggml."): value for name, value in fields.items()}
    if (given["model"], given["pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"the file's tokenizer is {given['model']!r}, {given['pre']!r}")
    tokens = given["tokens"]
    merges = [tuple(merge.split(" ")) for merge in given["merges"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = given.get("unknown_token_id")
    unknown = None if unknown is None else tokens[unknown]  # of bytes that no token has
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, given["token_type"], strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            added = tokenizers.AddedToken(token, special=kind == _CONTROL, normalized=False)
            tokenizer.add_special_tokens([added]) if added.special else tokenizer.add_tokens(
                [added]
            )
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[given["eos_token_id"]],
        "chat_template": fields.get("tokenizer.chat_template"),
        "model_max_length": fields["llama.context_length"],
    }
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
