"""The training loop: AdamW on packed rows, through the same layers that serve."""

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxinfer.model.architecture import init_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from scripts.bundled_model.balance import BALANCE_WEIGHT, imbalance, logits_and_routers
from scripts.bundled_model.config import Schedule
from scripts.bundled_model.corpus import Example
from scripts.bundled_model.packing import batches

LOG_EVERY = 100


def cast(params: Any, dtype: str) -> Any:
    """The same tree with every leaf in another dtype."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params)


def weighted_loss(
    params: Any, config: ModelConfig, token_ids: jax.Array, weights: jax.Array
) -> jax.Array:
    """Mean next-token loss in nats over the weighted tokens of int32 [rows, length]."""
    return _next_token_loss(forward(params, config, token_ids), token_ids, weights)


def losses_of(
    params: Any, config: ModelConfig, token_ids: jax.Array, weights: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What training lowers, and what it is made of: `weighted_loss`, and of experts `imbalance`."""
    if config.experts is None:
        loss = weighted_loss(params, config, token_ids, weights)
        return loss, {"loss": loss}
    logits, routers = logits_and_routers(params, config, token_ids)
    loss = _next_token_loss(logits, token_ids, weights)
    uneven = imbalance(routers, config.experts, weights.reshape(-1) > 0)
    return loss + BALANCE_WEIGHT * uneven, {"loss": loss, "imbalance": uneven}


def _next_token_loss(logits: jax.Array, token_ids: jax.Array, weights: jax.Array) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], token_ids[:, 1:])
    return jnp.sum(losses * weights[:, 1:]) / jnp.sum(weights[:, 1:])


def make_optimizer(schedule: Schedule) -> optax.GradientTransformation:
    """AdamW with warm-up and cosine; only matrices decay."""
    rate = optax.warmup_cosine_decay_schedule(
        0.0,
        schedule.learning_rate,
        schedule.warmup,
        schedule.num_steps,
        end_value=schedule.learning_rate / 20,
    )
    decayed = functools.partial(jax.tree.map, lambda leaf: leaf.ndim > 1)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(rate, b1=0.9, b2=0.98, weight_decay=0.1, mask=decayed),
    )


def batches_of(
    schedule: Schedule, examples: Sequence[Example], pad_id: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids and weights of every step of a schedule, phase after phase."""
    for number, phase in enumerate(schedule.phases):
        stream = batches(examples, phase.length, phase.rows, pad_id, seed + number)
        for _ in range(phase.steps):
            yield next(stream)


def train(
    config: ModelConfig,
    schedule: Schedule,
    examples: Sequence[Example],
    *,
    pad_id: int,
    seed: int,
    max_seconds: float,
) -> Any:
    """Trains from random weights and returns them in float32.

    Args:
      config: the model's shape.
      schedule: steps, batch shapes and learning rate.
      examples: the training text.
      pad_id: token that fills rows.
      seed: decides the first weights and the order of the text.
      max_seconds: training stops early after this, and says so.
    """
    optimizer = make_optimizer(schedule)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params: Any, state: Any, token_ids: jax.Array, weights: jax.Array) -> Any:
        def loss_of(master: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            narrow = cast(master, schedule.compute_dtype)
            return losses_of(narrow, config, token_ids, weights)

        gradients, losses = jax.grad(loss_of, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, losses

    params = init_params(config, jax.random.key(seed), jnp.float32)
    state = optimizer.init(params)
    started, tokens = time.monotonic(), 0
    losses: list[dict[str, jax.Array]] = []
    for step, (token_ids, weights) in enumerate(batches_of(schedule, examples, pad_id, seed), 1):
        params, state, loss = update(params, state, token_ids, weights)
        losses.append(loss)
        tokens += token_ids.size
        if step % LOG_EVERY == 0 or step == schedule.num_steps:
            means = _means(losses)
            losses.clear()
            seconds = time.monotonic() - started
            print(
                f"step {step}/{schedule.num_steps}: {means}, {seconds:.0f} s, "
                f"{tokens / seconds:,.0f} tokens/s",
                flush=True,
            )
            if seconds > max_seconds and step < schedule.num_steps:
                print(f"stopped early: {max_seconds:g} s are over", flush=True)
                break
    return params


def _means(losses: Sequence[dict[str, jax.Array]]) -> str:
    fetched, names = jax.device_get(losses), ("loss", "imbalance")
    means = {name: np.mean([each[name] for each in fetched]) for name in names if name in losses[0]}
    return ", ".join(f"{name} {mean:.4f}" for name, mean in means.items())
