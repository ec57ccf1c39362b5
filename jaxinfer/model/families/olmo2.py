"""OLMo 2: norms behind attention and MLP instead of before, and one over all heads together."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families.family import Family
from jaxinfer.model.hf_config import dense_fields
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.architecture import Architecture
    from jaxinfer.model.config import ModelConfig

# Of transformers' Olmo2Config, for files that leave them out.
_DEFAULTS = {"rms_norm_eps": 1e-5, "num_key_value_heads": None}
_DEFAULT_ROPE_THETA = 10_000.0
_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`; ValueError names the field that can't be read or run."""
    return dense_fields({**_DEFAULTS, **mapping}, default_rope_theta=_DEFAULT_ROPE_THETA)


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """All layers are alike."""
    biases = ATTENTION_PROJECTIONS if config.attention_bias else ()
    kind = LayerKind(wide_norms=True, norms=_NORMS, biases=biases)
    return (kind,) * config.num_hidden_layers


@functools.cache
def architecture() -> "Architecture":
    """A decoder with layers of its own, which long sharded prefills go through all at once."""
    from jaxinfer.model.architecture import dense_decoder
    from jaxinfer.model.layers import post_norm

    return replace(
        dense_decoder(layer_kinds), decoder_layer=post_norm.decoder_layer, overlapped_layer=None
    )


FAMILY = Family("Olmo2ForCausalLM", read_config, layer_kinds, architecture)
