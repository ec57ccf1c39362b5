"""Changes to what a config.json says, without editing the file: a caller's, a classifier's."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import classifier_of_file
from jaxinfer.model.hf_config import SIZE_LIMITS, read_config_file, rope_object

# Fields whose change changes the model. End-of-sequence ids have other sources, too.
_FIELDS = (
    *SIZE_LIMITS,
    *("architectures", "model_type", "tie_word_embeddings", "attention_bias", "rms_norm_eps"),
    *("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings"),
    *("dtype", "hidden_act", "use_sliding_window", "sliding_window", "layer_types"),
    *("quantization_config", "partial_rotary_factor", "no_rope_layers"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *("decoder_sparse_step", "mlp_only_layers"),
    *("is_matryoshka", "matryoshka_dimensions"),
)


def apply_overrides(mapping: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json object with some values replaced; objects within are merged.

    Of a multimodal model, the object under `text_config` is changed.

    An override wins over any other spelling of its field in the file: `rope_scaling` over
    `rope_parameters`, `rope_theta` over the one inside of these.

    Raises:
        ValueError: the engine does not read a field, or the file contradicts itself; names it.
    """
    for name in overrides:
        if name not in _FIELDS:
            nearest = difflib.get_close_matches(name, _FIELDS, n=1, cutoff=0.75)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it reads {', '.join(_FIELDS)}"
            raise ValueError(f"hf_overrides: the engine reads no {name!r} of config.json; {hint}")
    if isinstance(mapping.get("text_config"), Mapping):
        inner = apply_overrides(mapping["text_config"], overrides)
        outer = {name: value for name, value in mapping.items() if name not in overrides}
        return {**outer, "text_config": inner}
    merged = _merge(mapping, {k: v for k, v in overrides.items() if not k.startswith("rope_")})
    rope = rope_object(mapping)
    inside = {"rope_theta", "original_max_position_embeddings"}
    for name in overrides.keys() & inside:
        rope.pop(name, None)
        merged[name] = overrides[name]
    for name in ("rope_scaling", "rope_parameters"):
        if name not in overrides:
            continue
        change = overrides[name]
        if change is None:  # back to plain positions
            rope = {key: value for key, value in rope.items() if key == "rope_theta"}
        elif isinstance(change, Mapping):
            for key in change.keys() & {"original_max_position_embeddings"} - overrides.keys():
                merged.pop(key, None)
            spelled = {"rope_type" if key == "type" else key: v for key, v in change.items()}
            rope = _merge(rope, spelled)
            if rope.get("rope_type") == "default":  # and nothing of another type is left
                rope = {key: rope[key] for key in rope.keys() & {"rope_type", "rope_theta"}}
        else:
            return merged | {"rope_parameters": None, name: change}  # refused by its own name
    merged.pop("rope_parameters", None)
    return merged | {"rope_scaling": rope}


def decoder_config(file: Path) -> ModelConfig:
    """The model of a config.json, of which a classifier is its decoder.

    Raises:
        ModelLoadError: as of `ModelConfig.from_directory`.
    """
    return ModelConfig.from_hf(backbone_config(read_config_file(file)), str(file))


def backbone_config(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json object of the decoder behind a classifying head; others are as they are.

    It reads as that of a tied language model, which needs no tensors but the decoder's.
    """
    family = classifier_of_file(mapping)
    if family is None:
        return mapping
    return {**mapping, "architectures": [family.hf_class], "tie_word_embeddings": True}


def _merge(mapping: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(mapping)
    for name, value in changes.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(old, value)
        merged[name] = value
    return merged
