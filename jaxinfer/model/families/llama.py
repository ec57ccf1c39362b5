"""Llama and what is shaped like it: a decoder without norms of its heads.

SmolLM2 and the distillations of DeepSeek-R1 to Llama are of this class, too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families.family import Family
from jaxinfer.model.field_checks import flag
from jaxinfer.model.hf_config import dense_fields
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, MLP_PROJECTIONS, LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

# Of transformers' LlamaConfig, for files that leave them out, as those of the first Llamas do.
_DEFAULTS = {"max_position_embeddings": 2048, "num_key_value_heads": None}
_DEFAULT_ROPE_THETA = 10_000.0


def read_config(
    mapping: Mapping[str, Any], default_rope_theta: float = _DEFAULT_ROPE_THETA
) -> dict[str, Any]:
    """Arguments of `ModelConfig`. A missing ``head_dim`` is ``hidden_size / num_attention_heads``.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    fields = dense_fields({**_DEFAULTS, **mapping}, default_rope_theta=default_rope_theta)
    if mapping.get("mlp_bias") is not None:
        fields["mlp_bias"] = flag("mlp_bias", mapping["mlp_bias"])
    return fields


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """All layers are alike."""
    biases = ATTENTION_PROJECTIONS if config.attention_bias else ()
    biases += MLP_PROJECTIONS if config.mlp_bias else ()
    return (LayerKind(biases=biases),) * config.num_hidden_layers


FAMILY = Family("LlamaForCausalLM", read_config, layer_kinds)
