"""Edits of logits before temperature: allowed tokens, biases and bans, penalties.

The order is vLLM's: masks and biases first, penalties last.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxinfer.serving.sampling.layout import IN_OUTPUT, LogitEdits
from jaxinfer.serving.sampling.masks import mask_logits
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


def edit_logits(
    logits: Float[Array, "B V"],
    edits: LogitEdits,
    token_counts: Int[Array, "B V"],
    rows: RowParameters,
    axis: VocabAxis,
) -> Float[Array, "B V"]:
    """Apply every edit of mode "full" to float32 logits (or this device's shard of them)."""
    logits = mask_logits(logits, edits.allowed, rows, axis)
    applies = rows.needs_edits[:, None] & (rows.position[:, None] < edits.until)
    columns = local_columns(edits.ids, logits.shape[1], axis)
    batch = jnp.arange(logits.shape[0])[:, None]
    logits = logits.at[batch, columns].add(jnp.where(applies, edits.values, 0.0), mode="drop")
    return _penalise(logits, jnp.where(rows.needs_history[:, None], token_counts, 0), rows)


def local_columns(ids: jax.Array, width: int, axis: VocabAxis) -> jax.Array:
    """Turn token ids into local columns; ids of other shards and padding become `width`.

    A scatter wraps negative indices round, so they must not reach it; `width` is dropped.
    """
    local = ids - axis.offset(width)
    return jnp.where((ids >= 0) & (local >= 0) & (local < width), local, width)


def _penalise(
    logits: Float[Array, "B V"], token_counts: Int[Array, "B V"], rows: RowParameters
) -> Float[Array, "B V"]:
    """Apply repetition (prompt and output), frequency and presence (output) penalties."""
    counts = token_counts // IN_OUTPUT
    repetition = jnp.where(token_counts > 0, rows.repetition_penalty[:, None], 1.0)
    logits = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = logits - rows.frequency_penalty[:, None] * counts.astype(jnp.float32)
    return logits - jnp.where(counts > 0, rows.presence_penalty[:, None], 0.0)
