"""Qwen2: queries, keys and values have biases, and heads no norms.

Qwen2.5, QwQ and the distillations of DeepSeek-R1 to Qwen are of this class, too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families.family import Family
from jaxinfer.model.hf_config import dense_fields
from jaxinfer.model.layer_kind import LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

_BIASES = ("q_proj", "k_proj", "v_proj")
_DEFAULT_ROPE_THETA = 10_000.0  # of transformers, for a file that names none


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`. ``sliding_window`` counts with ``use_sliding_window`` alone.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    plain = {name: value for name, value in mapping.items() if name != "attention_bias"}
    return dense_fields(plain, default_rope_theta=_DEFAULT_ROPE_THETA)


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """All layers are alike, and have the biases that config.json does not mention."""
    return (LayerKind(biases=_BIASES),) * config.num_hidden_layers


FAMILY = Family("Qwen2ForCausalLM", read_config, layer_kinds)
