"""The configuration of a GGUF file's model, from its metadata: all of it, or one line why not."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.gguf.header import GgufHeader
from jaxinfer.model.checkpoint.gguf.tensors import ROPE_FACTORS, read_values
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.rope_scaling import Llama3RopeScaling

ARCHITECTURES = ("llama", "qwen2", "qwen3")
_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
_OPTIONAL = ("attention.head_count_kv", "attention.key_length")
_ROPE_BASE, _DEFAULT_ROPE_BASE = "rope.freq_base", 10_000.0
_SCALING = {
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
# Checked, or without an effect on the values that a model computes.
_OTHERS = (
    *("vocab_size", "attention.value_length", "rope.dimension_count", _ROPE_BASE),
    *("rope.scaling.type", "rope.scaling.finetuned", "attention.causal", "tensor_data_layout"),
)
# Older files name the order of the rows of q and k, which all Llamas have.
_LAYOUT, _LLAMA_LAYOUT = "tensor_data_layout", "meta ai original pth"
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_config(header: GgufHeader, dtype: str) -> ModelConfig:
    """The model's configuration.

    Raises:
        ModelLoadError: the file holds something else than a model, one of another architecture, or
            one whose metadata ask for what is not computed here; names the key.
    """
    try:
        return ModelConfig.from_hf(_hf_config(header, dtype), str(header.file))
    except _MetadataError as error:
        raise ModelLoadError(f"{header.file}: {error}") from None


class _MetadataError(Exception):
    """Metadata that can't be converted."""


def _hf_config(header: GgufHeader, dtype: str) -> dict[str, Any]:
    """The object of config.json."""
    name = _architecture(header.fields)
    own = _own_metadata(header.fields, name)
    mapping = {_SIZES[key]: value for key, value in own.items() if key in _SIZES}
    mapping.setdefault("head_dim", _head_dim(mapping))
    for key in ("attention.value_length", "rope.dimension_count"):
        value, head_dim = own.get(key, mapping["head_dim"]), mapping["head_dim"]
        if value != head_dim:
            raise _MetadataError(f"{name}.{key} is {value!r:.40}, and heads have {head_dim!r:.40}")
    mapping["architectures"] = [family_of(name).hf_class]
    mapping["model_type"] = name
    mapping["torch_dtype"] = dtype
    mapping["rope_theta"] = own.get(_ROPE_BASE, _DEFAULT_ROPE_BASE)
    mapping["rope_scaling"] = _scaling(own, name) or _factors_scaling(header, mapping)
    mapping["tie_word_embeddings"] = "output.weight" not in header.tensors
    if name == "llama":
        mapping["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        mapping["mlp_bias"] = "blk.0.ffn_gate.bias" in header.tensors
    return mapping | _vocabulary(header)


def _own_metadata(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the metadata have of this architecture, by keys without its name."""
    own = {
        key.removeprefix(f"{name}."): _one(fields, key)
        for key in fields
        if key.startswith(f"{name}.")
    }
    known = {*_SIZES, *_SCALING, *_OTHERS}
    for key, value in own.items():
        if key not in known and not _is_nothing(value):
            raise _MetadataError(f"its metadata has {name}.{key}, which is not converted")
    if str(own.get(_LAYOUT, _LLAMA_LAYOUT)).lower() != _LLAMA_LAYOUT:
        raise _MetadataError(f"{name}.{_LAYOUT} is {own[_LAYOUT]!r:.60}, which is not converted")
    if not own.get("attention.causal", True):
        raise _MetadataError(f"{name}.attention.causal is false: the model writes no text")
    for key in _SIZES:
        if key not in own and key not in _OPTIONAL:
            raise _MetadataError(f"its metadata lacks {name}.{key}")
    return own


def _one(fields: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """A value that is no list."""
    value = fields.get(key, default)
    if isinstance(value, list | np.ndarray):
        raise _MetadataError(f"{key:.60} is a list, which is not converted")
    return value


def _architecture(fields: Mapping[str, Any]) -> str:
    name, kind = _one(fields, "general.architecture"), _one(fields, "general.type", "model")
    if kind == "adapter" or "adapter.type" in fields:
        raise _MetadataError("an adapter (LoRA), not a model; convert its base model")
    if kind == "mmproj" or name in ("clip", "mmproj"):
        raise _MetadataError("the projector of a multimodal model (mmproj), not a model")
    if kind != "model":
        raise _MetadataError(f"general.type is {kind!r:.40}, not a model")
    if not isinstance(name, str):
        raise _MetadataError("its metadata lacks general.architecture")
    if name not in ARCHITECTURES:
        raise _MetadataError(
            f"general.architecture is {name!r:.40}; these are converted: {', '.join(ARCHITECTURES)}"
        )
    if _one(fields, "split.count", 1) not in (0, 1):
        raise _MetadataError(
            f"one of {fields['split.count']} parts; merge them first (llama-gguf-split --merge)"
        )
    return name


def _is_nothing(value: Any) -> bool:
    """Whether a number turns off what it is the size of."""
    return isinstance(value, int | float) and value == 0


def _head_dim(mapping: Mapping[str, Any]) -> Any:
    hidden, heads = mapping["hidden_size"], mapping["num_attention_heads"]
    if type(hidden) is not int or type(heads) is not int or heads < 1:
        raise _MetadataError(
            f"attention.head_count is {heads!r:.40}, embedding_length {hidden!r:.40}"
        )
    return hidden // heads


def _vocabulary(header: GgufHeader) -> dict[str, Any]:
    """Its size and the tokens that begin and end a text."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise _MetadataError("it has no tensor token_embd.weight")
    ids = (*_END_IDS, "bos_token_id")
    given = {key: _one(header.fields, f"tokenizer.ggml.{key}") for key in ids}
    ends = dict.fromkeys(given[key] for key in _END_IDS if given[key] is not None)
    return {
        "vocab_size": embedding.shape[0],
        "eos_token_id": list(ends),
        "bos_token_id": given["bos_token_id"],
    }


def _scaling(own: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """YaRN's parameters, if the metadata have them."""
    kind = own.get("rope.scaling.type", "linear" if "rope.scaling.factor" in own else "none")
    if kind == "none":
        return None
    if kind != "yarn":
        raise _MetadataError(f"{name}.rope.scaling.type is {kind!r:.40}; yarn is converted")
    return {"rope_type": "yarn"} | {
        _SCALING[key]: value for key, value in own.items() if key in _SCALING
    }


def _factors_scaling(header: GgufHeader, mapping: Mapping[str, Any]) -> dict[str, Any] | None:
    """Llama 3's parameters, which the factors of the frequencies were computed from.

    All of its models have the same but for the largest factor.
    """
    if ROPE_FACTORS not in header.tensors:
        return None
    factors = read_values(header, ROPE_FACTORS).ravel()
    if (factors == 1).all():
        return None
    half, theta = len(factors), mapping["rope_theta"]
    is_known = mapping["head_dim"] == 2 * half and isinstance(theta, float) and 1 < theta < 1e12
    if is_known and np.isfinite(factors).all() and factors.max() > 1:
        scaling = Llama3RopeScaling(float(factors.max()), 1.0, 4.0, 8192)
        wavelengths = np.float32(theta) ** (np.arange(half, dtype=np.float32) / half)
        frequencies, _ = scaling.scaled(wavelengths, theta)
        if np.allclose(factors, 1 / (wavelengths * frequencies), rtol=1e-3, atol=0):
            return scaling.to_hf()
    raise _MetadataError(f"{ROPE_FACTORS} scales rotations, and not as Llama 3 does")
