"""How wrong an EAGLE-3 head is about a model's own predictions, for drafts that build on drafts.

As in EAGLE-3 (arXiv:2503.01840) the head runs several times over each text: at first on the true
features, and then on what it gave one token before, as it does when it drafts. Each time it learns
the model's distribution of the next token, as far as the head's vocabulary has it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.eagle3.config import Eagle3Config
from jaxinfer.model.draft_head.eagle3.forward import without_first
from jaxinfer.model.draft_head.eagle3.layer import (
    Output,
    features_of,
    finish,
    keys_values_of,
    pair_up,
    queries_of,
    scores_of,
)
from jaxinfer.model.forward import residual_stream


def head_config(model: ModelConfig) -> Eagle3Config:
    """A head of 850 thousand parameters for the bundled model."""
    layer = dataclasses.replace(
        model,
        model_type="llama",
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=256,
        tie_word_embeddings=False,
    )
    last = model.num_hidden_layers - 1
    return Eagle3Config(layer, 512, (1, last - 1, last))


def drafting_outputs(
    head: Any, config: Eagle3Config, features: jax.Array, embeddings: jax.Array, depth: int
) -> list[Output]:
    """What the head gives at each position of texts when the pair there is its n-th in a row.

    Args:
        head: its parameters.
        config: its shape.
        features: ``[B, T, E]``, of all tokens.
        embeddings: ``[B, T, E]``.
        depth: most pairs in a row.

    Returns:
        For each n up to `depth`, outputs ``[B, T, E]``, with a meaning from position n on.
    """
    B, T, _ = features.shape
    positions = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
    true_keys: tuple[jax.Array, jax.Array] | None = None
    own: list[tuple[jax.Array, jax.Array]] = []
    outputs, source = [], features
    for n in range(1, depth + 1):
        pair = pair_up(head, _later(source, 1), embeddings, positions, config)
        made = keys_values_of(head, pair, config)
        if true_keys is None:
            true_keys = without_first(made)
        else:
            own.append(made)
        mixed = _attend(queries_of(head, pair, config), true_keys, own, n)
        outputs.append(finish(head, pair, mixed, config))
        source = outputs[-1].fed_back
    return outputs


def _later(x: jax.Array, by: int) -> jax.Array:
    """``[B, T, ...]`` moved to later positions; zeros come in."""
    return jnp.pad(x, [(0, 0), (by, 0), *[(0, 0)] * (x.ndim - 2)])[:, : x.shape[1]]


def _attend(
    queries: jax.Array,
    true_keys: tuple[jax.Array, jax.Array],
    own: Sequence[tuple[jax.Array, jax.Array]],
    n: int,
) -> jax.Array:
    """Attention of the n-th pairs in a row: over true ones, and those that the head made since."""
    B, T, H, D = queries.shape
    keys, values = true_keys
    grouped = queries.reshape(B, T, keys.shape[2], -1, D)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, keys)
    mask = jnp.tril(jnp.ones((T, T), bool), 1 - n)
    scores = [jnp.where(mask, scores, jnp.finfo(jnp.float32).min)]
    moved = [tuple(_later(x, n - 2 - i) for x in each) for i, each in enumerate(own)]
    scores += [jnp.einsum("btkgd,btkd->bkgt", grouped, key)[..., None] for key, _ in moved]
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1) * D**-0.5, axis=-1)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights[..., :T], values)
    for i, (_, value) in enumerate(moved):
        weight = jnp.moveaxis(weights[..., T + i], 3, 1)[..., None]
        mixed += weight * value[:, :, :, None]
    return mixed.reshape(B, T, H, D)


def loss_of(
    head: Any,
    config: Eagle3Config,
    params: Any,
    model_config: ModelConfig,
    token_ids: jax.Array,
    weights: jax.Array,
    key: jax.Array,
    *,
    depth: int,
) -> tuple[jax.Array, jax.Array]:
    """Mean loss in nats over depths and weighted tokens; and how often each depth guesses right.

    Args:
        head: its parameters.
        config: its shape.
        params: the model's parameters.
        model_config: the model's shape.
        token_ids: texts, int32 ``[B, T]``.
        weights: of predicting each token, float32 ``[B, T]``.
        key: unused.
        depth: pairs in a row.
    """
    model = architecture_of(model_config)
    x, seen = residual_stream(params, model_config, token_ids, watched={0, *config.states})
    logits = model.lm_head(params, model.final_hidden(params, x, model_config))
    wanted = jax.nn.softmax(logits[..., head["token_ids"]], axis=-1)
    best = logits.argmax(axis=-1)
    of_next = jnp.pad(weights[:, 1:], ((0, 0), (0, 1)))  # at p: of predicting token p + 1
    features = features_of(head, [seen[layer] for layer in config.states], config)
    losses, rights = [], []
    for n, output in enumerate(drafting_outputs(head, config, features, seen[0], depth), 1):
        scores = scores_of(head, output.normed)
        counted = of_next * (jnp.arange(token_ids.shape[1]) >= n)
        nats = optax.softmax_cross_entropy(scores, wanted)
        right = head["token_ids"][scores.argmax(axis=-1)] == best
        losses.append(jnp.sum(nats * counted) / jnp.sum(counted))
        rights.append(jnp.sum(right * counted) / jnp.sum(counted))
    return jnp.mean(jnp.stack(losses)), jnp.stack(rights)
