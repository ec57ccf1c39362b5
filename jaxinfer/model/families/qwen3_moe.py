"""Qwen3 with experts: dense Qwen3, whose MLPs are experts in most or all layers."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxinfer.checks import show
from jaxinfer.model.experts import Experts
from jaxinfer.model.families.family import Family
from jaxinfer.model.field_checks import whole_number
from jaxinfer.model.hf_config import dense_fields
from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, LayerKind

if TYPE_CHECKING:
    from jaxinfer.model.architecture import Architecture
    from jaxinfer.model.config import ModelConfig

# Of transformers' Qwen3MoeConfig, for files that leave them out.
_DEFAULTS = {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False}
_DEFAULT_EXPERTS = 128
_LARGEST = 2**31 - 1


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    fields = dense_fields(mapping)
    chosen, width, is_normed = (mapping.get(name, default) for name, default in _DEFAULTS.items())
    # transformers 5 has another name for it.
    count = mapping.get("num_experts", mapping.get("num_local_experts", _DEFAULT_EXPERTS))
    dense = _dense_layers(mapping, fields["num_hidden_layers"])
    return {**fields, "experts": Experts(count, chosen, width, is_normed, dense)}


def _dense_layers(mapping: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """Layers without experts: each but every n-th, and those that are listed."""
    step = whole_number("decoder_sparse_step", mapping.get("decoder_sparse_step", 1), 1, _LARGEST)
    listed = mapping.get("mlp_only_layers")
    listed = [] if listed is None else listed
    if not isinstance(listed, list):
        raise ValueError(f"mlp_only_layers must be a list, got {show(listed)}")
    for layer in listed:
        whole_number("mlp_only_layers", layer, 0, _LARGEST)
    return tuple(i for i in range(num_layers) if i in listed or (i + 1) % step)


def write_config(config: "ModelConfig", fields: dict[str, Any]) -> dict[str, Any]:
    """The object of config.json that `read_config` reads back."""
    experts = _experts_of(config)
    return {
        **fields,
        "num_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "moe_intermediate_size": experts.intermediate_size,
        "norm_topk_prob": experts.norm_topk_prob,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(experts.dense_layers),
    }


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """Qwen3's kind, with experts or with one MLP."""
    dense = _experts_of(config).dense_layers
    biases = ATTENTION_PROJECTIONS if config.attention_bias else ()
    kind = LayerKind(head_norms=True, biases=biases)
    return tuple(
        replace(kind, experts=layer not in dense) for layer in range(config.num_hidden_layers)
    )


def with_layers(config: "ModelConfig", layers: Sequence[int]) -> "ModelConfig":
    """The config of a model with these layers alone, each of the kind that it was."""
    experts = _experts_of(config)
    dense = tuple(new for new, old in enumerate(layers) if old in experts.dense_layers)
    experts = replace(experts, dense_layers=dense)
    return replace(config, num_hidden_layers=len(layers), experts=experts)


@functools.cache
def architecture() -> "Architecture":
    """A decoder with experts, whose layers long sharded prefills go through all at once."""
    from jaxinfer.model.architecture import dense_decoder
    from jaxinfer.model.layers import experts

    return replace(
        dense_decoder(layer_kinds), decoder_layer=experts.decoder_layer, overlapped_layer=None
    )


def _experts_of(config: "ModelConfig") -> Experts:
    if config.experts is None:
        raise ValueError('a config with model_type "qwen3_moe" needs experts')
    return config.experts


FAMILY = Family(
    "Qwen3MoeForCausalLM",
    read_config,
    layer_kinds,
    architecture,
    with_layers=with_layers,
    write_config=write_config,
    stacked="experts",
)
