"""Trains a draft head on a model's own predictions, for drafts that build on drafts.

As in EAGLE-3 (arXiv:2503.01840) the head runs several times over each text: at first on the true
features, and then on what it gave one token before, as it does when it drafts. Each time it learns
the model's distribution of the next token, as far as the head's vocabulary has it.
"""

import functools
import time
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxinfer.model.architecture import architecture_of
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.config import DraftHeadConfig
from jaxinfer.model.draft_head.forward import without_first
from jaxinfer.model.draft_head.layer import (
    Output,
    features_of,
    finish,
    keys_values_of,
    pair_up,
    queries_of,
    scores_of,
)
from jaxinfer.model.draft_head.weights import describe_head
from jaxinfer.model.forward import residual_stream

LOG_EVERY = 50


def init_head(config: DraftHeadConfig, token_ids: np.ndarray, seed: int) -> dict[str, Any]:
    """Random float32 parameters of a head.

    Args:
        config: its shape.
        token_ids: the model's ids of its tokens, int32 ``[Vd]``.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if len(leaf.shape) == 1:
            return jnp.ones(leaf.shape, jnp.float32)
        return jnp.asarray(rng.normal(0.0, leaf.shape[-1] ** -0.5, leaf.shape), jnp.float32)

    tree = jax.tree.map(draw, describe_head(config, jnp.float32))
    return tree | {"token_ids": jnp.asarray(token_ids, jnp.int32)}


def drafting_outputs(
    head: Any, config: DraftHeadConfig, features: jax.Array, embeddings: jax.Array, depth: int
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
    config: DraftHeadConfig,
    params: Any,
    model_config: ModelConfig,
    token_ids: jax.Array,
    weights: jax.Array,
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


def train_head(
    config: DraftHeadConfig,
    params: Any,
    model_config: ModelConfig,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    token_ids: np.ndarray,
    steps: int,
    learning_rate: float,
    depth: int,
    seed: int,
) -> dict[str, Any]:
    """Train a head from random weights; float32.

    Args:
        config: its shape.
        params: the model's parameters, in the dtype to compute in.
        model_config: the model's shape.
        batches: token ids and weights, ``[B, T]`` each, without end.
        token_ids: the model's ids of the head's tokens, int32 ``[Vd]``.
        steps: of the optimizer.
        learning_rate: the peak, before a cosine to a twentieth.
        depth: pairs in a row that are trained.
        seed: of the first weights.
    """
    rate = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, min(50, steps // 10)), steps, end_value=learning_rate / 20
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b1=0.9, b2=0.98))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(trained: Any, state: Any, params: Any, ids: jax.Array, weights: jax.Array) -> Any:
        def loss(trained: Any) -> tuple[jax.Array, jax.Array]:
            head = trained | {"token_ids": jnp.asarray(token_ids, jnp.int32)}
            return loss_of(head, config, params, model_config, ids, weights, depth)

        (value, rights), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        updates, state = optimizer.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state, value, rights

    trained = init_head(config, token_ids, seed)
    ids = trained.pop("token_ids")
    state, started = optimizer.init(trained), time.monotonic()
    for step, (tokens, weights) in zip(range(1, steps + 1), batches, strict=False):
        trained, state, value, rights = update(trained, state, params, tokens, weights)
        if step % LOG_EVERY == 0 or step == steps:
            shares = " ".join(f"{share:.3f}" for share in np.asarray(rights))
            seconds = time.monotonic() - started
            print(
                f"step {step}/{steps}: loss {value:.4f}, right {shares}, {seconds:.0f} s",
                flush=True,
            )
    return trained | {"token_ids": ids}
