"""What the devices compute of calibration texts: residual streams, and Hessians of projections."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.matmul.xla import precision
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.model.architecture import DecoderLayer, activation_dtype, architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import dense_context
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers import decoder, post_norm
from jaxinfer.model.layers.context import LayerContext, Params

GROUPS = (
    ("self_attn", ("q_proj", "k_proj", "v_proj")),
    ("self_attn", ("o_proj",)),
    ("mlp", ("gate_proj", "up_proj")),
    ("mlp", ("down_proj",)),
)
"""The projections of a layer that read the same, in the order of the computation."""

_NORMS_BEFORE: Mapping[DecoderLayer, bool] = {
    decoder.decoder_layer: True,
    post_norm.decoder_layer: False,
}
"""By the function of a layer: whether attention and MLP read norms of the stream, or the stream."""


def is_known(config: ModelConfig) -> bool:
    """Whether it is known what the projections of a family's layers read."""
    return architecture_of(config).decoder_layer in _NORMS_BEFORE


@functools.partial(jax.jit, static_argnames="config")
def embedded(
    params: Params, config: ModelConfig, token_ids: Int32[Array, "N T"]
) -> Float[Array, "N T E"]:
    """The residual streams that the first layer reads."""
    return architecture_of(config).embed(params, token_ids).astype(activation_dtype(params))


@functools.partial(jax.jit, static_argnames=("config", "kind"), donate_argnames="streams")
def behind_layer(
    layer: Params, config: ModelConfig, kind: LayerKind, streams: Float[Array, "N T E"]
) -> Float[Array, "N T E"]:
    """The residual streams behind a layer. `streams` is donated."""
    context, run = _context(config, kind, streams), architecture_of(config).decoder_layer
    return jax.lax.map(lambda x: run(layer, begin(x), context).summed(), streams)


@functools.partial(jax.jit, static_argnames=("config", "kind", "group"))
def hessian(
    layer: Params,
    config: ModelConfig,
    kind: LayerKind,
    group: int,
    streams: Float[Array, "N T E"],
    lengths: Int32[Array, " N"],
) -> Float32[Array, "I I"]:
    """``X.T @ X`` of what the projections of a group read, X ``[tokens, I]``.

    Args:
        layer: plain parameters of the layer.
        config: the model's shape.
        kind: the layer's.
        group: index in `GROUPS`.
        streams: the residual streams that the layer reads, a text at a time.
        lengths: tokens of each text; padding behind them does not count.
    """
    context = _context(config, kind, streams)

    def add(total: jax.Array, text: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        x, length = text
        inputs = projection_inputs(layer, x, context)[group]
        inputs = jnp.where(jnp.arange(len(x))[:, None] < length, inputs, 0)
        product = jax.lax.dot_general(
            inputs,
            inputs,
            (((0,), (0,)), ((), ())),
            precision=precision(inputs.dtype),
            preferred_element_type=jnp.float32,
        )
        return total + product, None

    parent, names = GROUPS[group]
    width = layer[parent][names[0]].shape[1]
    return jax.lax.scan(add, jnp.zeros((width, width), jnp.float32), (streams, lengths))[0]


def projection_inputs(
    layer: Params, x: Float[Array, "T E"], context: LayerContext
) -> tuple[Float[Array, "T _"], ...]:
    """What the projections of each of `GROUPS` read of a stream.

    The stream that the MLP reads is what leaves the layer if `down_proj` is zero.
    """
    run, eps = architecture_of(context.config).decoder_layer, context.config.rms_norm_eps
    mlp = {name: leaf for name, leaf in layer["mlp"].items() if name != "down_proj_bias"}
    mlp["down_proj"] = jnp.zeros_like(mlp["down_proj"])
    told: dict[str, Any] = {}
    context = replace(context, tap=told.__setitem__)
    middle = run({**layer, "mlp": mlp}, begin(x), context).summed()
    if _NORMS_BEFORE[run]:
        x = rms_norm(x, layer["input_layernorm"], eps)
        middle = rms_norm(middle, layer["post_attention_layernorm"], eps)
    return x, told["attention"], middle, told["mlp"]


def _context(config: ModelConfig, kind: LayerKind, streams: jax.Array) -> LayerContext:
    """The context of a layer that reads one of the streams."""
    positions = jnp.arange(streams.shape[1])
    rotations = architecture_of(config).rotations(positions, config, streams.dtype)
    causal = jnp.tril(jnp.ones((len(positions), len(positions)), bool))
    return dense_context(config, kind, rotations[kind.rotation], causal)
