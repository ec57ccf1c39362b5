"""The architecture of a model family: a value of functions, chosen by the model's config.

Steps, samplers and loaders ask it for every part of a model, and import no family's own modules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxinfer.kernels.attention.op import Backend, norm_rope_write
from jaxinfer.model import qwen3, rope, two_batch_overlap
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules

Params = Mapping[str, Any]
Pages = tuple[jax.Array, jax.Array]
Rotation = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Architecture:
    """The parts of a decoder-only transformer, for one device's shards of its parameters.

    Attributes:
        init_params: ``(config, rng, dtype) -> params``, random.
        abstract_params: ``(config, dtype, mesh, rules) -> tree of jax.ShapeDtypeStruct`` with
            shardings, which loaders, trainers and steps share. Paths are Hugging Face's names.
        embed: ``(params, token_ids) -> [T, E]``.
        embed_share: ``(params, token_ids, axis) -> [T, E]``, whose sum over devices `embed` is.
        rotation: ``(positions, config, dtype) -> (cos, sin)``, ``[T, D]`` each.
        decoder_layer: as `qwen3.decoder_layer`.
        overlapped_layer: as `two_batch_overlap.overlapped_layer`.
        write_heads: ``(attention, heads, rotation, pages, slot_mapping, config, backend) ->
            (queries, pages)``: what happens to projected heads before attention, the write of keys
            and values into the donated pages included.
        final_hidden: ``(params, x, config) -> [.., E]``, what the head reads.
        lm_head: ``(params, hidden) -> [.., V]``, float32 logits.
        head_params: the part of the tree that the last two read, so that samplers take no more.
    """

    init_params: Callable[..., dict[str, Any]]
    abstract_params: Callable[..., dict[str, Any]]
    embed: Callable[..., jax.Array]
    embed_share: Callable[..., jax.Array]
    rotation: Callable[..., Rotation]
    decoder_layer: Callable[..., Any]
    overlapped_layer: Callable[..., Any]
    write_heads: Callable[..., tuple[jax.Array, Pages]]
    final_hidden: Callable[..., jax.Array]
    lm_head: Callable[..., jax.Array]
    head_params: Callable[[Params], dict[str, Any]]


def _init_qwen3(config: ModelConfig, rng: jax.Array, dtype: DTypeLike) -> dict[str, Any]:
    from jaxinfer.model import modules  # Flax takes long to import, and tracing needs none of it

    return modules.init_params(config, rng, dtype)


def _abstract_qwen3(
    config: ModelConfig, dtype: DTypeLike, mesh: Mesh | None, rules: ShardingRules | None
) -> dict[str, Any]:
    from jaxinfer.model import modules

    return modules.abstract_params(config, dtype, mesh, rules)


def _write_qwen3_heads(
    attention: Params,
    heads: qwen3.Heads,
    rotation: Rotation,
    pages: Pages,
    slot_mapping: jax.Array,
    config: ModelConfig,
    backend: Backend,
) -> tuple[jax.Array, Pages]:
    queries, *written = norm_rope_write(
        heads,
        attention["q_norm"],
        attention["k_norm"],
        *rotation,
        *pages,
        slot_mapping,
        eps=config.rms_norm_eps,
        backend=backend,
    )
    k_pages, v_pages = written
    return queries, (k_pages, v_pages)


QWEN3 = Architecture(
    init_params=_init_qwen3,
    abstract_params=_abstract_qwen3,
    embed=qwen3.embed,
    embed_share=qwen3.embed_share,
    rotation=rope.cos_sin,
    decoder_layer=qwen3.decoder_layer,
    overlapped_layer=two_batch_overlap.overlapped_layer,
    write_heads=_write_qwen3_heads,
    final_hidden=qwen3.final_hidden,
    lm_head=qwen3.lm_head,
    head_params=qwen3.head_params,
)

ARCHITECTURES = {"qwen3": QWEN3}
"""By `ModelConfig.model_type`."""


def architecture_of(config: ModelConfig) -> Architecture:
    """The architecture that a config names.

    Raises:
        ValueError: no architecture has that name; the message lists the names.
    """
    if config.model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ValueError(f"model_type is {config.model_type!r}; architectures: {known}")
    return ARCHITECTURES[config.model_type]


def init_params(config: ModelConfig, rng: jax.Array, dtype: DTypeLike) -> dict[str, Any]:
    """Random parameters: matrices normal with deviation 0.02, norms one, biases zero.

    Args:
        config: the model's shape.
        rng: a JAX PRNG key.
        dtype: of every leaf.

    Returns:
        Nested dict with Hugging Face's names. Under ``jax.jit`` with the shardings of
        ``abstract_params`` as ``out_shardings``, each device creates only its part.
    """
    return architecture_of(config).init_params(config, rng, dtype)


def abstract_params(
    config: ModelConfig,
    dtype: DTypeLike,
    mesh: Mesh | None = None,
    rules: ShardingRules | None = None,
) -> dict[str, Any]:
    """Shapes, dtypes and shardings of every parameter, without memory.

    Args:
        config: the model's shape.
        dtype: of every leaf.
        mesh: with a mesh each leaf carries a ``NamedSharding``; without, none.
        rules: which logical axis goes on which mesh axis; the default rules if None.

    Raises:
        ValueError: the mesh's tensor axis doesn't divide the model.
    """
    return architecture_of(config).abstract_params(config, dtype, mesh, rules)
