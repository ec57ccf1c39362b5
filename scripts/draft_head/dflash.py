"""How wrong a DFlash head is about a model's own predictions, in blocks anywhere in texts.

As in DFlash (arXiv:2602.06036) each text has blocks that begin at tokens drawn at random. The first
places of a block weigh more, since a wrong guess makes those behind it useless.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.dflash.config import DFlashConfig
from jaxinfer.model.draft_head.dflash.forward import block_forward
from jaxinfer.model.draft_head.dflash.layers import features_of
from jaxinfer.model.forward import residual_stream

_BLOCKS, _DECAY = 16, 4.0
_MASK = 2040  # the bundled model's <|im_start|>, which no answer has


def head_config(model: ModelConfig) -> DFlashConfig:
    """A head of a million parameters for the bundled model."""
    layer = dataclasses.replace(
        model,
        model_type="qwen3",
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=240,
    )
    last = model.num_hidden_layers - 1
    return DFlashConfig(layer, model.vocab_size, (1, last - 1, last), 8, _MASK)


def loss_of(
    head: Any,
    config: DFlashConfig,
    params: Any,
    model_config: ModelConfig,
    token_ids: jax.Array,
    weights: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Mean loss in nats; and how often a block's guesses up to each place are right.

    Args:
        head: its parameters.
        config: its shape.
        params: the model's parameters.
        model_config: the model's shape.
        token_ids: texts, int32 ``[B, T]``.
        weights: of predicting each token, float32 ``[B, T]``.
        key: of the draw of the blocks.
    """
    (B, T), N = token_ids.shape, config.block_size
    model = architecture_of(model_config)
    x, seen = residual_stream(params, model_config, token_ids, watched=set(config.states))
    logits = model.lm_head(params, model.final_hidden(params, x, model_config))
    features = features_of(head, [seen[layer] for layer in config.states], config)

    of_next = jnp.pad(weights[:, 1:], ((0, 0), (0, 1))) > 0
    drawn = jnp.where(of_next, jax.random.gumbel(key, (B, T)), -jnp.inf)
    _, starts = jax.lax.top_k(drawn, min(_BLOCKS, T))  # [B, A]
    steps = jnp.arange(N, dtype=jnp.int32)
    positions = (starts[..., None] + steps).reshape(B, -1)  # [B, A N]
    places = jnp.broadcast_to(steps, (B, starts.shape[1], N)).reshape(B, -1)
    newest = jnp.take_along_axis(token_ids, jnp.repeat(starts, N, axis=1), axis=1)
    tokens = jnp.where(places == 0, newest, config.mask_token_id)

    before = jnp.arange(T) < jnp.repeat(starts, N, axis=1)[..., None]
    block = jnp.repeat(jnp.arange(starts.shape[1]), N)
    same = jnp.broadcast_to(block[:, None] == block, (B, len(block), len(block)))
    visible = jnp.concatenate([before, same], axis=-1)
    normed = block_forward(head, config, features, model.embed(params, tokens), positions, visible)

    known = jnp.maximum(jnp.minimum(positions, T) - 1, 0)  # the token before tells of the next
    wanted = jnp.take_along_axis(logits, known[..., None], axis=1)
    counted = jnp.take_along_axis(weights, jnp.minimum(positions, T - 1), axis=1)
    counted = jnp.where((positions < T) & (places > 0), counted, 0)
    scores = model.lm_head(params, normed)
    nats = optax.softmax_cross_entropy(scores, jax.nn.softmax(wanted, axis=-1))
    weighed = counted * jnp.exp(-(places - 1) / _DECAY)
    loss = jnp.sum(nats * weighed) / jnp.sum(weighed)
    right = (scores.argmax(-1) == wanted.argmax(-1)).reshape(B, -1, N)[..., 1:]
    counted = (counted > 0).reshape((*right.shape[:2], N))[..., 1:]
    all_right = jnp.cumprod(right, axis=-1) * counted
    return loss, all_right.sum((0, 1)) / jnp.maximum(counted.sum((0, 1)), 1)
