"""Greedy decoding by the plain forward: training is judged without the engine."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from scripts.bundled_model.rendering import prompt_text
from scripts.evaluation.rates import Question, Trial

LENGTH_STEP = 64
"""Batches are padded to a multiple of this, so that few shapes are compiled."""


def answer(
    params: Any,
    config: ModelConfig,
    tokenizer: Tokenizer,
    asked: Sequence[Question],
    *,
    max_tokens: int,
    rows: int,
) -> list[Trial]:
    """Asks every question and returns the replies in the order asked.

    Args:
      params: the weights, in the dtype to compute in.
      config: the model's shape and end tokens.
      tokenizer: of the same model.
      asked: the questions.
      max_tokens: a reply that is longer is cut and counts as not ended.
      rows: questions decoded together.
    """
    prompts = [tokenizer.encode(prompt_text(q.item, q.thinking)).ids for q in asked]
    order = sorted(range(len(asked)), key=lambda i: len(prompts[i]))
    trials: dict[int, Trial] = {}
    for start in range(0, len(order), rows):
        chosen = order[start : start + rows]
        replies = _decode(params, config, [prompts[i] for i in chosen], max_tokens, rows)
        for i, reply in zip(chosen, replies, strict=True):
            ended = bool(reply) and reply[-1] in config.eos_token_ids
            trials[i] = Trial(asked[i], tokenizer.decode(reply), ended)
    return [trials[i] for i in range(len(asked))]


def _decode(
    params: Any, config: ModelConfig, prompts: list[list[int]], max_tokens: int, rows: int
) -> list[list[int]]:
    longest = max(map(len, prompts)) + max_tokens
    width = -(-longest // LENGTH_STEP) * LENGTH_STEP
    token_ids = np.zeros((rows, width), np.int32)
    lengths = np.zeros(rows, np.int32)
    for row, prompt in enumerate(prompts):
        token_ids[row, : len(prompt)] = prompt
        lengths[row] = len(prompt)
    filled, ends = _decode_batch(params, config, token_ids, lengths, max_tokens)
    filled, ends = np.asarray(filled), np.asarray(ends)
    return [filled[row, len(prompt) : ends[row]].tolist() for row, prompt in enumerate(prompts)]


@functools.partial(jax.jit, static_argnames=("config", "max_tokens"))
def _decode_batch(
    params: Any, config: ModelConfig, token_ids: jax.Array, lengths: jax.Array, max_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Appends tokens to every row until all rows have ended; rows of length 0 are padding.

    Args:
      token_ids: prompts, int32 [rows, width]; entries behind a prompt are overwritten.
      lengths: of the prompts, int32 [rows].

    Returns:
      The rows with the replies, and where each reply ends.
    """
    stops = jnp.asarray(config.eos_token_ids, jnp.int32)
    row_ids = jnp.arange(token_ids.shape[0])

    def going(carry: tuple[jax.Array, ...]) -> jax.Array:
        step, _, _, active = carry
        return (step < max_tokens) & active.any()

    def append(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        step, ids, ends, active = carry
        logits = forward(params, config, ids)
        chosen = jnp.argmax(logits[row_ids, ends - 1], axis=-1).astype(jnp.int32)
        ids = ids.at[row_ids, ends].set(jnp.where(active, chosen, ids[row_ids, ends]))
        ends = ends + active.astype(jnp.int32)
        return step + 1, ids, ends, active & ~jnp.isin(chosen, stops)

    start = (jnp.int32(0), token_ids, lengths, lengths > 0)
    _, ids, ends, _ = jax.lax.while_loop(going, append, start)
    return ids, ends
