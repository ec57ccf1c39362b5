"""SmolLM3: Llama, and every fourth layer does not rotate its heads."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxinfer.checks import show
from jaxinfer.model.families import llama
from jaxinfer.model.families.family import Family
from jaxinfer.model.field_checks import whole_number
from jaxinfer.model.layer_kind import LayerKind

if TYPE_CHECKING:
    import jax
    from jax.typing import DTypeLike

    from jaxinfer.model.architecture import Architecture
    from jaxinfer.model.config import ModelConfig
    from jaxinfer.model.layers.context import Rotation

_DEFAULT_ROPE_THETA = 2_000_000.0  # of transformers, like the interval
_DEFAULT_INTERVAL = 4
_ROTATED, _UNROTATED = 0, 1  # places in what `rotations` returns


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`. ``no_rope_layers`` has a 1 for each layer that rotates.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    tied = {"tie_word_embeddings": True, **mapping}
    fields = llama.read_config(tied, default_rope_theta=_DEFAULT_ROPE_THETA)
    flags, layers = mapping.get("no_rope_layers"), fields["num_hidden_layers"]
    if flags is None:
        interval = mapping.get("no_rope_layer_interval", _DEFAULT_INTERVAL)
        interval = whole_number("no_rope_layer_interval", interval, 1, 2**31 - 1)
        flags = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(flags, list) or len(flags) < layers or not {*map(repr, flags)} <= {"0", "1"}:
        raise ValueError(f"no_rope_layers must have a 0 or 1 for each layer, got {show(flags)}")
    unrotated = tuple(layer for layer in range(layers) if not flags[layer])
    return {**fields, "unrotated_layers": unrotated}


def write_config(config: "ModelConfig", fields: dict[str, Any]) -> dict[str, Any]:
    """The object of config.json that `read_config` reads back."""
    layers = range(config.num_hidden_layers)
    flags = [int(layer not in config.unrotated_layers) for layer in layers]
    return {**fields, "no_rope_layers": flags}


def layer_kinds(config: "ModelConfig") -> tuple[LayerKind, ...]:
    """Llama's kind, with and without rotation."""
    kinds = llama.layer_kinds(config)
    return tuple(
        replace(kind, rotation=_UNROTATED if layer in config.unrotated_layers else _ROTATED)
        for layer, kind in enumerate(kinds)
    )


def with_layers(config: "ModelConfig", layers: Sequence[int]) -> "ModelConfig":
    """The config of a model with these layers alone, each of the kind that it was."""
    unrotated = tuple(new for new, old in enumerate(layers) if old in config.unrotated_layers)
    return replace(config, num_hidden_layers=len(layers), unrotated_layers=unrotated)


def rotations(
    positions: "jax.Array", config: "ModelConfig", dtype: "DTypeLike"
) -> "tuple[Rotation, ...]":
    """The rotation by position, and the one that turns nothing."""
    import jax.numpy as jnp

    from jaxinfer.model import rope

    cos, sin = rope.cos_sin(positions, config, dtype)
    return (cos, sin), (jnp.ones_like(cos), jnp.zeros_like(sin))


@functools.cache
def architecture() -> "Architecture":
    """A decoder with two rotations."""
    from jaxinfer.model.architecture import dense_decoder

    return replace(dense_decoder(layer_kinds), rotations=rotations)


FAMILY = Family(
    "SmolLM3ForCausalLM",
    read_config,
    layer_kinds,
    architecture,
    with_layers=with_layers,
    write_config=write_config,
)
