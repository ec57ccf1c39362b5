"""The architecture of a model family: a value of functions, chosen by the model's config.

Steps, samplers and loaders ask it for every part of a model, and import no family's own modules.
What of a family needs no device, its config.json above all, is in `jaxinfer.model.families`.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jaxinfer.kernels.attention.pages import Pages
from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model import rope
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import family_of
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers import decoder, two_batch_overlap
from jaxinfer.model.layers.context import Heads, LayerContext, Params, Rotation
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.stages.staged_params import num_stages, on_stages

InitParams = Callable[[ModelConfig, jax.Array, DTypeLike], dict[str, Any]]
AbstractParams = Callable[
    [ModelConfig, DTypeLike, Mesh | None, ShardingRules | None], dict[str, Any]
]
EmbedShare = Callable[[Params, jax.Array, TensorAxis], jax.Array]
Rotations = Callable[[jax.Array, ModelConfig, DTypeLike], tuple[Rotation, ...]]
FinalHidden = Callable[[Params, jax.Array, ModelConfig], jax.Array]
LmHead = Callable[[Params, jax.Array], jax.Array]


@runtime_checkable
class Embed(Protocol):
    """As `decoder.embed`."""

    def __call__(
        self, params: Params, token_ids: jax.Array, axis: TensorAxis | None = None
    ) -> jax.Array:
        """``[..., E]`` of ids ``[...]``."""
        ...


@runtime_checkable
class DecoderLayer(Protocol):
    """As `decoder.decoder_layer`."""

    def __call__(
        self, layer: Params, residual: ResidualStream, context: LayerContext
    ) -> ResidualStream:
        """The residual stream behind the layer."""
        ...


@runtime_checkable
class OverlappedLayer(Protocol):
    """As `two_batch_overlap.overlapped_layer`."""

    def __call__(
        self, layer: Params, residuals: Sequence[ResidualStream], contexts: Sequence[LayerContext]
    ) -> list[ResidualStream]:
        """The residual stream of each part behind the layer."""
        ...


@runtime_checkable
class RotateHeads(Protocol):
    """As `decoder.rotate_heads`."""

    def __call__(
        self, attention: Params, q: jax.Array, k: jax.Array, rotation: Rotation, eps: float
    ) -> tuple[jax.Array, jax.Array]:
        """Queries and keys as attention reads them."""
        ...


@runtime_checkable
class WriteHeads(Protocol):
    """As `decoder.write_heads`."""

    def __call__(
        self,
        attention: Params,
        heads: Heads,
        rotation: Rotation,
        pages: Pages,
        slot_mapping: jax.Array,
        config: ModelConfig,
        kernels: Kernels,
    ) -> tuple[jax.Array, Pages]:
        """Queries as attention reads them, and the pages with these keys and values."""
        ...


@dataclass(frozen=True)
class Architecture:
    """The parts of a decoder-only transformer, for one device's shards of its parameters.

    Attributes:
        init_params: ``(config, rng, dtype) -> params``, random.
        abstract_params: ``(config, dtype, mesh, rules) -> tree of jax.ShapeDtypeStruct`` with
            shardings, which loaders, trainers and steps share. Paths are Hugging Face's names.
        layer_kinds: ``(config) -> kind of each layer``. Layers of a kind share a trace.
        embed: ``(params, token_ids) -> [T, E]``.
        embed_share: ``(params, token_ids, axis) -> [T, E]``, whose sum over devices `embed` is.
        rotations: ``(positions, config, dtype) -> ((cos, sin), ...)``, ``[T, D]`` each; a layer's
            kind says which of them turns its heads.
        decoder_layer: ``(layer, residual, context) -> residual``.
        rotate_heads: ``(attention, q, k, rotation, eps) -> (q, k)``: what happens to projected
            heads before attention, over whole sequences.
        write_heads: ``(attention, heads, rotation, pages, slot_mapping, config, kernels) ->
            (queries, pages)``: the same of packed tokens, the write of keys and values into the
            donated pages included.
        final_hidden: ``(params, x, config) -> [.., E]``, what the head reads.
        lm_head: ``(params, hidden) -> [.., V]``, float32 logits.
        head_params: the part of the tree that the last two read, so that samplers take no more.
        overlapped_layer: ``(layer, residuals, contexts) -> residuals``, of parts of the tokens in
            turn; None where long sharded prefills go through a layer all at once.
    """

    init_params: InitParams
    abstract_params: AbstractParams
    layer_kinds: Callable[[ModelConfig], tuple[LayerKind, ...]]
    embed: Embed
    embed_share: EmbedShare
    rotations: Rotations
    decoder_layer: DecoderLayer
    rotate_heads: RotateHeads
    write_heads: WriteHeads
    final_hidden: FinalHidden
    lm_head: LmHead
    head_params: Callable[[Params], dict[str, Any]]
    overlapped_layer: OverlappedLayer | None = None


@functools.cache
def dense_decoder(
    layer_kinds: Callable[[ModelConfig], tuple[LayerKind, ...]],
) -> Architecture:
    """A decoder with one gated MLP a layer, as `jaxinfer.model.layers.decoder` computes it."""
    return Architecture(
        init_params=_init_dense,
        abstract_params=_abstract_dense,
        layer_kinds=layer_kinds,
        embed=decoder.embed,
        embed_share=decoder.embed_share,
        rotations=_one_rotation,
        decoder_layer=decoder.decoder_layer,
        rotate_heads=decoder.rotate_heads,
        write_heads=decoder.write_heads,
        final_hidden=decoder.final_hidden,
        lm_head=decoder.lm_head,
        head_params=decoder.head_params,
        overlapped_layer=two_batch_overlap.overlapped_layer,
    )


def _one_rotation(
    positions: jax.Array, config: ModelConfig, dtype: DTypeLike
) -> tuple[Rotation, ...]:
    return (rope.cos_sin(positions, config, dtype),)


def _init_dense(config: ModelConfig, rng: jax.Array, dtype: DTypeLike) -> dict[str, Any]:
    from jaxinfer.model import modules  # Flax takes long to import, and tracing needs none of it

    return modules.init_params(config, rng, dtype)


def _abstract_dense(
    config: ModelConfig, dtype: DTypeLike, mesh: Mesh | None, rules: ShardingRules | None
) -> dict[str, Any]:
    from jaxinfer.model import modules

    return modules.abstract_params(config, dtype, mesh, rules)


def architecture_of(config: ModelConfig) -> Architecture:
    """The architecture that a config names; ValueError if no family has the name."""
    family = family_of(config.model_type)
    if family.architecture is None:
        return dense_decoder(family.layer_kinds)
    return family.architecture()


def activation_dtype(params: Params) -> jnp.dtype:
    """The dtype that a tree of parameters is computed in: its final norm's.

    Norms are never quantized, as the embedding and the head may be.

    Raises:
        KeyError: there is no final norm.
    """
    return jnp.dtype(params["model"]["norm"].dtype)


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
        mesh: with a mesh each leaf carries a ``NamedSharding``; without, none. With an axis of
            stages each lies on the devices of its own (`staged_params.py`).
        rules: which logical axis goes on which mesh axis; the default rules if None.

    Raises:
        ValueError: the mesh's tensor axis doesn't divide the model, or there are more stages than
            layers.
    """
    described = architecture_of(config).abstract_params(config, dtype, mesh, rules)
    if mesh is None or num_stages(mesh) == 1:
        return described
    return on_stages(described, config, mesh)
