"""Edits of logits before temperature: allowed tokens, biases and bans, penalties.

The order is vLLM's: masks and biases first, penalties last.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxinfer.serving.sampling.layout import SamplingArrays
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


def edit_logits(
    logits: Float[Array, "B V"], arrays: SamplingArrays, rows: RowParameters, axis: VocabAxis
) -> Float[Array, "B V"]:
    """Apply every edit of mode "full" to float32 logits (or this device's shard of them)."""
    logits = _mask(logits, arrays.allowed, axis)
    columns = _local_columns(arrays.edit_ids, logits.shape[1], axis)
    batch = jnp.arange(logits.shape[0])[:, None]
    logits = logits.at[batch, columns].add(arrays.edit_values, mode="drop")
    return _penalise(logits, arrays.history, rows, axis)


def _mask(logits: Float[Array, "B V"], allowed: Int[Array, "B W"], axis: VocabAxis) -> jax.Array:
    ids = axis.ids(logits.shape[1])
    words = jnp.take(allowed, ids >> 5, axis=1)
    bits = (words >> (ids & 31)) & 1
    return jnp.where(bits == 1, logits, -jnp.inf)


def _local_columns(ids: jax.Array, width: int, axis: VocabAxis) -> jax.Array:
    """Turn token ids into local columns; what is elsewhere or padding becomes `width`.

    A scatter wraps negative indices round, so they must not reach it; `width` is dropped.
    """
    local = ids - axis.offset(width)
    return jnp.where((ids >= 0) & (local >= 0) & (local < width), local, width)


def _penalise(
    logits: Float[Array, "B V"], history: Int[Array, "B L"], rows: RowParameters, axis: VocabAxis
) -> Float[Array, "B V"]:
    """Apply repetition (prompt and output), frequency and presence (output) penalties."""
    batch = jnp.arange(logits.shape[0])[:, None]
    place = jnp.arange(history.shape[1], dtype=jnp.int32)[None, :]
    known = jnp.where(place < rows.history_length[:, None], history, -1)
    output = jnp.where(place >= rows.prompt_length[:, None], known, -1)

    width = logits.shape[1]
    seen = jnp.zeros(logits.shape, bool)
    seen = seen.at[batch, _local_columns(known, width, axis)].set(True, mode="drop")
    counts = jnp.zeros(logits.shape, jnp.int32)
    counts = counts.at[batch, _local_columns(output, width, axis)].add(1, mode="drop")

    repetition = jnp.where(seen, rows.repetition_penalty[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = logits - rows.frequency_penalty[:, None] * counts.astype(jnp.float32)
    return logits - jnp.where(counts > 0, rows.presence_penalty[:, None], 0.0)
