"""Log-probabilities of a row, without sorting the vocabulary: the likeliest tokens', the chosen
one's, and its place among all."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxinfer.serving.sampling.vocab_axis import VocabAxis, split_blocks


class Report(NamedTuple):
    """The log-probabilities of B rows.

    Attributes:
        chosen: float32 `[B]`, of the token that was chosen, or given.
        top_ids: int32 `[B, k]`, the likeliest tokens in descending order.
        top: float32 `[B, k]`, their log-probabilities.
        ranks: int32 `[B]`, the chosen token's place, 1 for the likeliest.
    """

    chosen: Float[Array, "B"]
    top_ids: Int[Array, "B k"]
    top: Float[Array, "B k"]
    ranks: Int[Array, "B"]


def report_log_softmax(
    logits: Float[Array, "B V"],
    tokens: Int[Array, "B"],
    largest: Float[Array, "B"],
    total: Float[Array, "B"],
    count: int,
    axis: VocabAxis,
) -> Report:
    """Log-probabilities of the logits as they are: their log-softmax.

    Args:
        logits: float32 logits, this device's shard of them.
        tokens: One token id of each row, in the whole vocabulary.
        largest: Each row's largest logit.
        total: Sum over the whole vocabulary of ``exp(logit - largest)``.
        count: k, the number of likeliest tokens.
    """
    top_ids, _ = top_tokens(logits, count, axis)
    # One expression for all, so that a token has the same value as chosen and as likeliest.
    values = axis.take(logits, jnp.concatenate([tokens[:, None], top_ids], axis=1))
    logprobs = values - largest[:, None] - jnp.log(total)[:, None]
    rank = ranks(logits, values[:, 0], axis)
    return Report(logprobs[:, 0], top_ids, logprobs[:, 1:], rank)


def largest_logit(
    logits: Float[Array, "B V"], axis: VocabAxis
) -> tuple[Int[Array, "B"], Float[Array, "B"], Bool[Array, "B"]]:
    """Each row's best token (ties: lowest id), its logit, and whether the row is valid.

    A row is valid without NaN and plus infinity. NaN is looked for by itself, since a maximum
    ignores it on some backends.
    """
    blocks, ids = split_blocks(logits, axis)
    # Behind a barrier, or XLA would take the maximum from the logits again.
    block_maxima, block_sane = lax.optimization_barrier(
        (blocks.max(-1), (blocks < jnp.inf).all(-1))
    )
    value = block_maxima.max(1)
    sane = block_sane.all(1)
    block = _first_equal(block_maxima, value)
    column = _first_equal(blocks[jnp.arange(logits.shape[0]), block], value)
    # A row of NaN could end in the padding of the last block.
    token = jnp.minimum(ids[block, column], ids[0, 0] + logits.shape[1] - 1)
    if axis.name is not None:
        # One exchange: the float travels by its bits.
        bits = lax.bitcast_convert_type(jnp.where(sane, value, jnp.nan), jnp.int32)
        gathered = axis.stack(jnp.stack([bits, token], axis=1))
        values = lax.bitcast_convert_type(gathered[:, :, 0], jnp.float32)
        value, sane = values.max(1), (values < jnp.inf).all(1)
        owner = _first_equal(values, value)
        token = jnp.take_along_axis(gathered[:, :, 1], owner[:, None], axis=1)[:, 0]
    return token, value, sane


def _first_equal(values: Float[Array, "B n"], value: Float[Array, "B"]) -> Int[Array, "B"]:
    """Return the first place of a value in each row; the last place where it is nowhere (NaN)."""
    count = values.shape[1]
    place = jnp.arange(count, dtype=jnp.int32)[None, :]
    return jnp.where(values == value[:, None], place, count - 1).min(1)


def top_tokens(
    logits: Float[Array, "B V"], k: int, axis: VocabAxis
) -> tuple[Int[Array, "B k"], Float[Array, "B k"]]:
    """Return the k largest logits of each row in descending order (ties: lowest id first).

    The k largest tokens lie in the k blocks with the largest maxima, so only block maxima and the
    tokens of k blocks are ever sorted.

    Args:
        logits: float32 logits, this device's shard of them.
        k: Number of tokens; at most V.

    Returns:
        Token ids, int32, and their logits.
    """
    batch, vocab = logits.shape
    local_k = min(k, vocab)
    blocks, block_ids = split_blocks(logits, axis)
    _, chosen = lax.top_k(blocks.max(-1), min(local_k, blocks.shape[1]))
    chosen = jnp.sort(chosen, axis=1)  # candidates in order of ids, so that ties fall right
    rows = jnp.arange(batch)[:, None]
    candidates = blocks[rows, chosen].reshape(batch, -1)
    ids = block_ids[chosen].reshape(batch, -1)
    values, places = lax.top_k(candidates, local_k)
    # Padding can be chosen only where everything after it is minus infinity too.
    tokens = jnp.minimum(jnp.take_along_axis(ids, places, axis=1), block_ids[0, 0] + vocab - 1)
    if axis.name is not None:
        values = axis.stack(values).reshape(batch, -1)
        tokens = axis.stack(tokens).reshape(batch, -1)
        values, places = lax.top_k(values, k)
        tokens = jnp.take_along_axis(tokens, places, axis=1)
    return tokens, values


def ranks(
    logits: Float[Array, "B V"], chosen: Float[Array, "B"], axis: VocabAxis
) -> Int[Array, "B"]:
    """Return the chosen token's rank: 1 plus the number of tokens with a larger logit."""
    larger = (logits > chosen[:, None]).astype(jnp.int32).sum(1)
    return axis.sum(larger) + 1
