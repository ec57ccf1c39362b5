"""The training loop: AdamW on packed rows, through the same forward that serves."""

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
    logits = forward(params, config, token_ids)[:, :-1]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, token_ids[:, 1:])
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
        def loss_of(master: Any) -> jax.Array:
            narrow = cast(master, schedule.compute_dtype)
            return weighted_loss(narrow, config, token_ids, weights)

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = init_params(config, jax.random.key(seed), jnp.float32)
    state = optimizer.init(params)
    started, tokens = time.monotonic(), 0
    losses: list[jax.Array] = []
    for step, (token_ids, weights) in enumerate(batches_of(schedule, examples, pad_id, seed), 1):
        params, state, loss = update(params, state, token_ids, weights)
        losses.append(loss)
        tokens += token_ids.size
        if step % LOG_EVERY == 0 or step == schedule.num_steps:
            mean = float(np.mean(jax.device_get(losses)))
            losses.clear()
            seconds = time.monotonic() - started
            print(
                f"step {step}/{schedule.num_steps}: loss {mean:.4f}, {seconds:.0f} s, "
                f"{tokens / seconds:,.0f} tokens/s",
                flush=True,
            )
            if seconds > max_seconds and step < schedule.num_steps:
                print(f"stopped early: {max_seconds:g} s are over", flush=True)
                break
    return params
