"""Ministral 3: Mistral, and queries grow with their position beyond the original context."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families import mistral
from jaxinfer.model.families.family import Family
from jaxinfer.model.field_checks import positive
from jaxinfer.model.hf_config import rope_object
from jaxinfer.model.rope_scaling import RopeScaling

if TYPE_CHECKING:
    import jax
    from jax.typing import DTypeLike

    from jaxinfer.kernels.attention.pages import Pages
    from jaxinfer.kernels.policy import Kernels
    from jaxinfer.model.architecture import Architecture
    from jaxinfer.model.config import ModelConfig
    from jaxinfer.model.layers.context import Heads, Params, Rotation

_BETA = "llama_4_scaling_beta"


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`; YaRN's object holds the growth of queries, too.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    rope = rope_object(mapping)
    beta = rope.pop(_BETA, None)
    rope.pop("max_position_embeddings", None)  # once more, as beside it
    plain = {name: value for name, value in mapping.items() if name != "rope_scaling"}
    fields = mistral.read_config({**plain, "rope_parameters": rope})
    if beta is None:
        return fields
    scaling = fields["rope_scaling"]
    if not isinstance(scaling, RopeScaling):
        raise ValueError(f"{_BETA} needs a rope_scaling of type yarn, which names the context")
    return {**fields, "rope_scaling": replace(scaling, query_beta=positive(_BETA, beta))}


def rotations(
    positions: "jax.Array", config: "ModelConfig", dtype: "DTypeLike"
) -> "tuple[Rotation, ...]":
    """One rotation, and beside its cosines and sines the factor of each query, ``[T]``."""
    import jax.numpy as jnp

    from jaxinfer.model import rope

    cos, sin = rope.cos_sin(positions, config, dtype)
    scaling, factors = config.rope_scaling, jnp.ones(positions.shape, jnp.float32)
    if isinstance(scaling, RopeScaling) and scaling.query_beta is not None:
        turns = positions // scaling.original_max_position_embeddings
        factors = 1 + scaling.query_beta * jnp.log1p(turns.astype(jnp.float32))
    return ((cos, sin, factors.astype(dtype)),)


def rotate_heads(
    attention: "Params", q: "jax.Array", k: "jax.Array", rotation: "Rotation", eps: float
) -> "tuple[jax.Array, jax.Array]":
    """As `decoder.rotate_heads`, and queries grown."""
    from jaxinfer.model.layers import decoder

    cos, sin, factors = rotation
    q, k = decoder.rotate_heads(attention, q, k, (cos, sin), eps)
    return q * factors[..., None, None], k


def write_heads(
    attention: "Params",
    heads: "Heads",
    rotation: "Rotation",
    pages: "Pages",
    slot_mapping: "jax.Array",
    config: "ModelConfig",
    kernels: "Kernels",
) -> "tuple[jax.Array, Pages]":
    """As `decoder.write_heads`, and queries grown."""
    from jaxinfer.model.layers import decoder

    cos, sin, factors = rotation
    q, pages = decoder.write_heads(
        attention, heads, (cos, sin), pages, slot_mapping, config, kernels
    )
    return q * factors[:, None, None], pages


@functools.cache
def architecture() -> "Architecture":
    """A decoder with these rotations."""
    from jaxinfer.model.architecture import dense_decoder

    parts = {"rotations": rotations, "rotate_heads": rotate_heads, "write_heads": write_heads}
    return replace(dense_decoder(mistral.layer_kinds), **parts)


FAMILY = Family("Ministral3ForCausalLM", read_config, mistral.layer_kinds, architecture)
