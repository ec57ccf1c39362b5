"""Dense Qwen3: a decoder whose query and key heads have norms."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families.family import Family
from jaxinfer.model.hf_config import dense_fields
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

_DEFAULT_HEAD_DIM = 128  # of transformers' Qwen3Config, for a file that names none


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`; a missing ``head_dim`` means 128, as in transformers.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    return dense_fields({"head_dim": _DEFAULT_HEAD_DIM, **mapping})


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """All layers are alike."""
    biases = ATTENTION_PROJECTIONS if config.attention_bias else ()
    return (LayerKind(head_norms=True, biases=biases),) * config.num_hidden_layers


FAMILY = Family("Qwen3ForCausalLM", read_config, layer_kinds)
