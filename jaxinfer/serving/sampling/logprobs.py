"""The likeliest tokens of a row and the place of the chosen one, without sorting the vocabulary."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxinfer.serving.sampling.draw import block_width
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


def largest_logit(
    logits: Float[Array, "B V"], axis: VocabAxis
) -> tuple[Int[Array, "B"], Float[Array, "B"], Bool[Array, "B"]]:
    """Return each row's best token (ties: lowest id), its logit, and whether the row is sane.

    A row is insane when it holds NaN or plus infinity or nothing but minus infinity. `argmax`
    takes the first NaN for the largest value, so the one value tells.
    """
    width = logits.shape[1]
    local = jnp.argmax(logits, axis=1).astype(jnp.int32)
    value = jnp.take_along_axis(logits, local[:, None], axis=1)[:, 0]
    token = local + axis.offset(width)
    if axis.name is not None:
        values, tokens = axis.stack(value), axis.stack(token)
        owner = jnp.argmax(values, axis=1)[:, None]
        value = jnp.take_along_axis(values, owner, axis=1)[:, 0]
        token = jnp.take_along_axis(tokens, owner, axis=1)[:, 0]
    return token, value, jnp.isfinite(value)


def top_tokens(
    logits: Float[Array, "B V"], k: int, axis: VocabAxis
) -> tuple[Int[Array, "B k"], Float[Array, "B k"]]:
    """Return the k largest logits of each row in descending order (ties: lowest id first).

    The k largest tokens lie in the k blocks with the largest maxima, so only block maxima and the
    tokens of k blocks are ever sorted.

    Args:
        logits: float32 logits, this device's shard of them.
        k: How many; at most V.
        axis: How the vocabulary is split.

    Returns:
        Token ids, int32, and their logits.
    """
    batch, vocab = logits.shape
    local_k = min(k, vocab)
    width = block_width(vocab)
    count = -(-vocab // width)
    padded = jnp.pad(logits, ((0, 0), (0, count * width - vocab)), constant_values=-jnp.inf)
    blocks = padded.reshape(batch, count, width)
    _, chosen = lax.top_k(blocks.max(-1), min(local_k, count))
    chosen = jnp.sort(chosen, axis=1)  # candidates in order of ids, so that ties fall right
    rows = jnp.arange(batch)[:, None]
    candidates = blocks[rows, chosen].reshape(batch, -1)
    ids = (chosen[:, :, None] * width + jnp.arange(width, dtype=jnp.int32)).reshape(batch, -1)
    values, places = lax.top_k(candidates, local_k)
    # Padding can be chosen only where everything after it is minus infinity too.
    tokens = jnp.minimum(jnp.take_along_axis(ids, places, axis=1), vocab - 1)
    tokens = tokens + axis.offset(vocab)
    if axis.name is not None:
        values = axis.stack(values).reshape(batch, -1)
        tokens = axis.stack(tokens).reshape(batch, -1)
        values, places = lax.top_k(values, k)
        tokens = jnp.take_along_axis(tokens, places, axis=1)
    return tokens, values


def ranks(
    logits: Float[Array, "B V"], chosen: Float[Array, "B"], axis: VocabAxis
) -> Int[Array, "B"]:
    """Return how many tokens have a larger logit than the chosen one, plus 1."""
    larger = (logits > chosen[:, None]).astype(jnp.int32).sum(1)
    return axis.sum(larger) + 1
