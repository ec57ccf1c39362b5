"""A draft head over whole sequences, with dense attention: for training and comparison."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from jaxinfer.kernels.matmul.op import begin
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.draft_head.dflash.config import DFlashConfig
from jaxinfer.model.draft_head.dflash.layers import keys_values_of
from jaxinfer.model.forward import dense_attention
from jaxinfer.model.layer_kind import LayerKind
from jaxinfer.model.layers.context import Heads, LayerContext, LayerStep, Params, Parts, Rotation
from jaxinfer.model.layers.decoder import run_layers


def block_forward(
    params: Params,
    config: DFlashConfig,
    features: Float[Array, "*batch T E"],
    embeddings: Float[Array, "*batch N E"],
    positions: Int32[Array, "*batch N"],
    visible: Bool[Array, "*batch N T+N"],
) -> Float[Array, "*batch N E"]:
    """What the head makes of the tokens of one or several blocks of a sequence.

    Args:
        params: the head's tree.
        config: its shape; static.
        features: of tokens 0 to T - 1, from `features_of`.
        embeddings: of the blocks' tokens, one block behind the other.
        positions: of the same tokens.
        visible: what each of them may read: the features, and behind them the blocks' tokens.

    Returns:
        The normed hidden states that the head's vocabulary, or the model's, is scored by.
    """
    model, layer = architecture_of(config.layer), config.layer
    steps = jnp.arange(features.shape[-2], dtype=jnp.int32)
    before = jnp.broadcast_to(steps, features.shape[:-1])
    (rotation_before,) = model.rotations(before, layer, features.dtype)
    (rotation,) = model.rotations(positions, layer, embeddings.dtype)

    def attend(attention: Params, heads: Heads) -> jax.Array:
        known = keys_values_of(attention, features, rotation_before, config)
        q, k, v = heads
        q, k = model.rotate_heads(attention, q, k, rotation, layer.rms_norm_eps)
        keys, values = (jnp.concatenate(each, axis=-3) for each in zip(known, (k, v), strict=True))
        return dense_attention(q, keys, values, visible)

    def step_of(_: int, kind: LayerKind) -> LayerStep:
        context = LayerContext(layer, kind, attend)
        step = functools.partial(model.decoder_layer, context=context)

        def layer_step(
            params: Params,
            _: Any,
            residuals: Sequence[Any],
            rotations: Sequence[Rotation],
            *rest: Any,
        ) -> tuple[None, list[Any]]:
            return None, [step(params, residuals[0])]

        return layer_step

    kinds = model.layer_kinds(layer)
    parts = Parts([begin(embeddings)], [(rotation,)], [None])
    _, x = run_layers(params["layers"], kinds, [None] * len(kinds), parts, step_of)
    return rms_norm(x, params["norm"], layer.rms_norm_eps)
