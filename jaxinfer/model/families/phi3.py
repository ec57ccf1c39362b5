"""Phi-3, Phi-4 and Phi-4-mini: files with fused projections; heads may rotate in part."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families.family import Family
from jaxinfer.model.field_checks import positive
from jaxinfer.model.hf_config import dense_fields, rope_object, without_window
from jaxinfer.model.layer_kind import LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.architecture import Architecture
    from jaxinfer.model.config import ModelConfig

_DEFAULT_ROPE_THETA = 10_000.0  # of transformers, like the original length
_DEFAULT_ORIGINAL_LENGTH = 4096
_ORIGINAL = "original_max_position_embeddings"
_OLD_NAMES = ("su", "yarn")  # of LongRoPE, in the first files of Phi-3


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`. A window at least as long as the context is none.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    rope = rope_object(mapping)
    share = rope.pop("partial_rotary_factor", None)
    share = mapping.get("partial_rotary_factor") if share is None else share
    if rope.get("rope_type") in _OLD_NAMES:
        rope["rope_type"] = "longrope"
    if rope.get("rope_type") == "longrope":
        rope.setdefault(_ORIGINAL, mapping.get(_ORIGINAL, _DEFAULT_ORIGINAL_LENGTH))
    else:
        rope.pop(_ORIGINAL, None)
    read = ("rope_scaling", "partial_rotary_factor")
    plain = {name: value for name, value in without_window(mapping).items() if name not in read}
    fields = dense_fields(
        {**plain, "rope_parameters": rope}, default_rope_theta=_DEFAULT_ROPE_THETA
    )
    if share is not None:
        fields["partial_rotary_factor"] = positive("partial_rotary_factor", share)
    return fields


def write_config(config: "ModelConfig", fields: dict[str, Any]) -> dict[str, Any]:
    """The object of config.json that `read_config` reads back."""
    if config.rope_scaling is not None:
        length = config.rope_scaling.original_max_position_embeddings
        fields = {**fields, "original_max_position_embeddings": length}
    return {**fields, "partial_rotary_factor": config.partial_rotary_factor}


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """All layers are alike."""
    return (LayerKind(),) * config.num_hidden_layers


@functools.cache
def architecture() -> "Architecture":
    """A decoder whose heads may rotate in part."""
    from jaxinfer.model.architecture import dense_decoder
    from jaxinfer.model.layers.partial_rotation import write_heads

    return replace(dense_decoder(layer_kinds), write_heads=write_heads)


FAMILY = Family(
    "Phi3ForCausalLM",
    read_config,
    layer_kinds,
    architecture,
    write_config=write_config,
    fused={
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    },
)
