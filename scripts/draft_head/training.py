"""Trains a draft head of any method."""

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.head_config import HeadConfig
from jaxinfer.model.draft_head.weights import describe_head

LOG_EVERY = 50


def init_head(config: HeadConfig, token_ids: np.ndarray, seed: int) -> dict[str, Any]:
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


def train_head(
    config: HeadConfig,
    loss_of: Callable[..., tuple[jax.Array, jax.Array]],
    params: Any,
    model_config: ModelConfig,
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    token_ids: np.ndarray,
    steps: int,
    learning_rate: float,
    seed: int,
) -> dict[str, Any]:
    """Train a head from random weights; float32.

    Args:
        config: its shape.
        loss_of: ``(head, its shape, model's parameters, model's shape, token ids, weights, key) ->
            (loss, how often each place of a draft is right)``.
        params: the model's parameters, in the dtype to compute in.
        model_config: the model's shape.
        batches: token ids and weights, ``[B, T]`` each, without end.
        token_ids: the model's ids of the head's tokens, int32 ``[Vd]``.
        steps: of the optimizer.
        learning_rate: the peak, before a cosine to a twentieth.
        seed: of the first weights, and of what the loss draws.
    """
    rate = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, min(50, steps // 10)), steps, end_value=learning_rate / 20
    )
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b1=0.9, b2=0.98))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(trained: Any, state: Any, params: Any, *batch: jax.Array) -> Any:
        def loss(trained: Any) -> tuple[jax.Array, jax.Array]:
            head = trained | {"token_ids": jnp.asarray(token_ids, jnp.int32)}
            return loss_of(head, config, params, model_config, *batch)

        (value, rights), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        updates, state = optimizer.update(gradients, state, trained)
        return optax.apply_updates(trained, updates), state, value, rights

    trained = init_head(config, token_ids, seed)
    ids, key = trained.pop("token_ids"), jax.random.key(seed)
    state, started = optimizer.init(trained), time.monotonic()
    for step, (tokens, weights) in zip(range(1, steps + 1), batches, strict=False):
        trained, state, value, rights = update(
            trained, state, params, tokens, weights, jax.random.fold_in(key, step)
        )
        if step % LOG_EVERY == 0 or step == steps:
            shares = " ".join(f"{share:.3f}" for share in np.asarray(rights))
            seconds = time.monotonic() - started
            print(
                f"step {step}/{steps}: loss {value:.4f}, right {shares}, {seconds:.0f} s",
                flush=True,
            )
    return trained | {"token_ids": ids}
