"""Mistral 7B from v0.2 on, Nemo and Small 3: Llama's layers with heads of their own size."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families.family import Family
from jaxinfer.model.hf_config import dense_fields, without_window
from jaxinfer.model.layer_kind import LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

_DEFAULT_ROPE_THETA = 10_000.0  # of transformers, for a file that names none


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`. A window at least as long as the context is none.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    return dense_fields(without_window(mapping), default_rope_theta=_DEFAULT_ROPE_THETA)


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """All layers are alike."""
    return (LayerKind(),) * config.num_hidden_layers


FAMILY = Family("MistralForCausalLM", read_config, layer_kinds)
