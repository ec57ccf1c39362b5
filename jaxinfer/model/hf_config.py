"""Reads Hugging Face's config.json into the fields of ModelConfig, checking every type.

What families have in common; each says in its own file what is different there.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.checks import show
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.directory_files import has_file, read_json
from jaxinfer.model.field_checks import flag, positive, whole_number
from jaxinfer.model.quantized.config_json import read_quantization
from jaxinfer.model.rope_scaling import SUPPORTED_ROPE_TYPES, scaling_from_hf

DTYPES = ("float32", "bfloat16", "float16")

# Generous next to the largest published model (hidden 5,120, 64 layers, vocabulary 151,936), and
# small enough that no product of two of them overflows an int64.
SIZE_LIMITS = {
    "vocab_size": 2**24,
    "hidden_size": 2**17,
    "intermediate_size": 2**20,
    "num_hidden_layers": 1024,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 4096,
    "max_position_embeddings": 2**30,
}
# Fields that a multimodal model's file may have beside its text_config, and mean it.
_BESIDE_TEXT = (
    "dtype",
    "torch_dtype",
    "tie_word_embeddings",
    "quantization_config",
    "compression_config",
)
_MAX_CONFIG_BYTES = 1 << 20


def read_config_file(file: Path) -> Mapping[str, Any]:
    """Parse a config.json.

    Raises:
        ModelLoadError: the file is missing, too large, or holds no JSON object; one line.
    """
    if not has_file(file.parent, file.name):
        raise ModelLoadError(f"{file}: no such file; not a model directory")
    return read_json(file.parent, file.name, _MAX_CONFIG_BYTES)


def dense_fields(
    mapping: Mapping[str, Any], *, default_rope_theta: float | None = None
) -> dict[str, Any]:
    """Arguments of ``ModelConfig`` for a dense decoder, in the spelling of transformers 4 or 5.

    Args:
        mapping: the JSON object. Without ``head_dim``, that is ``hidden_size /
            num_attention_heads``; without ``num_key_value_heads``, each query head has its own.
        default_rope_theta: for a file that names none; None refuses it.

    Raises:
        ValueError: a field is missing, of the wrong type, or asks for an unsupported feature.
    """
    _check_unsupported(mapping)
    fields: dict[str, Any] = _sizes(mapping)
    for name in ("tie_word_embeddings", "attention_bias"):
        if mapping.get(name) is not None:
            fields[name] = flag(name, mapping[name])
    if mapping.get("rms_norm_eps") is not None:
        fields["rms_norm_eps"] = positive("rms_norm_eps", mapping["rms_norm_eps"])
    fields |= _rope(mapping, fields["max_position_embeddings"], default_rope_theta)
    dtype = mapping.get("dtype") or mapping.get("torch_dtype") or "float32"
    if not isinstance(dtype, str) or dtype.removeprefix("torch.") not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {show(dtype)}")
    fields["dtype"] = dtype.removeprefix("torch.")
    fields["quantization"] = read_quantization(
        mapping.get("quantization_config") or mapping.get("compression_config")
    )
    eos, bos = mapping.get("eos_token_id"), mapping.get("bos_token_id")
    last = fields["vocab_size"] - 1
    fields["eos_token_ids"] = tuple(
        whole_number("eos_token_id", token_id, 0, last)
        for token_id in (eos if isinstance(eos, list) else [eos])
        if token_id is not None
    )
    fields["bos_token_id"] = None if bos is None else whole_number("bos_token_id", bos, 0, last)
    return fields


def text_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """What a multimodal model's object says of its texts, the fields beside it included.

    Raises:
        ValueError: there is no such object, or the two contradict each other.
    """
    inner = mapping.get("text_config")
    if not isinstance(inner, Mapping):
        raise ValueError(f"text_config must be an object, got {show(inner)}")
    shared = {name: mapping[name] for name in _BESIDE_TEXT if mapping.get(name) is not None}
    for name in shared.keys() & inner.keys():
        if inner[name] is not None and inner[name] != shared[name]:
            raise ValueError(
                f"{name} is {show(shared[name])}, and {show(inner[name])} in text_config"
            )
    return {**inner, **shared}


def without_window(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The object without ``sliding_window``, which means every layer in families that have it.

    Raises:
        ValueError: the window is shorter than the context, and would change the output.
    """
    window, longest = mapping.get("sliding_window"), mapping.get("max_position_embeddings")
    if window is not None:
        window = whole_number("sliding_window", window, 1, SIZE_LIMITS["max_position_embeddings"])
        if not isinstance(longest, int) or window < longest:
            raise ValueError(
                f"sliding-window attention is not supported (sliding_window {window}, "
                f"max_position_embeddings {show(longest)}); to serve texts of at most the window, "
                "set max_position_embeddings to it"
            )
    return {name: value for name, value in mapping.items() if name != "sliding_window"}


def _sizes(mapping: Mapping[str, Any]) -> dict[str, int]:
    missing = [name for name in SIZE_LIMITS if name != "head_dim" and name not in mapping]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    sizes = {name: mapping.get(name) for name in SIZE_LIMITS}
    heads = whole_number(
        "num_attention_heads", sizes["num_attention_heads"], 1, SIZE_LIMITS["num_attention_heads"]
    )
    if sizes["num_key_value_heads"] is None:
        sizes["num_key_value_heads"] = heads
    hidden = whole_number("hidden_size", sizes["hidden_size"], 1, SIZE_LIMITS["hidden_size"])
    if sizes["head_dim"] is None:
        sizes["head_dim"] = hidden // heads
    return {name: whole_number(name, sizes[name], 1, SIZE_LIMITS[name]) for name in SIZE_LIMITS}


def rope_object(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object that describes positions: ``rope_parameters``, ``rope_scaling``, or both.

    As in transformers, ``rope_scaling`` wins where a config.json has both, as one does to which a
    model card's YaRN was added. Its type is under ``rope_type``.

    Raises:
        ValueError: one is no object, or they ask for different things.
    """
    parameters = _rope_part(mapping, "rope_parameters")
    scaling = _rope_part(mapping, "rope_scaling")
    if scaling and mapping.get("rope_theta") is not None:
        scaling.setdefault("rope_theta", mapping["rope_theta"])
    for name in parameters.keys() & scaling.keys():
        is_default = name == "rope_type" and parameters[name] == "default"
        if parameters[name] != scaling[name] and not is_default:
            raise ValueError(
                f"rope_parameters and rope_scaling contradict each other: {name} is "
                f"{show(parameters[name])} in one and {show(scaling[name])} in the other"
            )
    return parameters | scaling


def _rope_part(mapping: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = mapping.get(name) or {}
    if not isinstance(part, Mapping):
        raise ValueError(f"{name} must be an object, got {show(part)}")
    part = dict(part)
    if "type" in part:  # the older spelling
        part.setdefault("rope_type", part["type"])
        del part["type"]
    return part


def _rope(
    mapping: Mapping[str, Any], max_position_embeddings: int, default_theta: float | None
) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling`` from either transformers' spelling."""
    rope = rope_object(mapping)
    theta = rope.pop("rope_theta", mapping.get("rope_theta"))
    theta = default_theta if theta is None else theta
    if theta is None:
        raise ValueError("missing rope_theta")
    theta = positive("rope_theta", theta)
    rotated = rope.pop("partial_rotary_factor", mapping.get("partial_rotary_factor"))
    if rotated is not None and rotated != 1:
        raise ValueError(f"partial_rotary_factor must be 1, got {show(rotated)}")
    kind = rope.pop("rope_type", "default")
    if kind not in SUPPORTED_ROPE_TYPES:
        raise ValueError(
            f"rope_scaling type {show(kind)} is not supported (supported: "
            f"{', '.join(SUPPORTED_ROPE_TYPES)})"
        )
    # transformers gives a top-level original length priority over the one inside the object.
    original = mapping.get("original_max_position_embeddings")
    if kind == "default":
        unused = sorted(name for name, value in rope.items() if value is not None)
        if unused:
            raise ValueError(
                f"rope_scaling has {', '.join(map(show, unused))} and no rope_type that uses it; "
                'for YaRN, add "rope_type": "yarn"'
            )
        return {"rope_theta": theta, "rope_scaling": None}
    if original is not None:
        rope["original_max_position_embeddings"] = original
    scaling = scaling_from_hf(kind, rope, max_position_embeddings)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _check_unsupported(mapping: Mapping[str, Any]) -> None:
    """Refuse what would change the model's output if it were ignored."""
    if mapping.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {show(mapping['hidden_act'])}")
    layer_types = mapping.get("layer_types") or []
    if not isinstance(layer_types, list):
        raise ValueError(f"layer_types must be a list, got {show(layer_types)}")
    if mapping.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ValueError("sliding-window attention is not supported (use_sliding_window)")
