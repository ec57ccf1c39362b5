"""Masks of allowed tokens, one bit a token: grammars need no sampler mode of their own.

The bits lie in the rows' slots on the device, and are read where a row needs edits.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from jaxinfer.serving.sampling.layout import SamplingArrays
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.vocab_axis import VocabAxis


def with_masks(
    arrays: SamplingArrays, allowed: Int[Array, "slots W"] | None, slots: Int32[Array, " B"]
) -> SamplingArrays:
    """Add the masks of the rows' slots, if the program takes them."""
    if allowed is None:
        return arrays
    return arrays._replace(masks=jnp.take(allowed, slots, axis=0, mode="clip"))


def mask_logits(
    logits: Float[Array, "B V"], allowed: Int[Array, "B W"], rows: RowParameters, axis: VocabAxis
) -> Float[Array, "B V"]:
    """Leave the tokens whose bits are set, in rows that need edits; and NaN and plus infinity.

    Rows with NaN or plus infinity are refused later, so these must stay visible.
    """
    allowed = jnp.where(rows.needs_edits[:, None], allowed, -1)
    # No gather, with which XLA would write the masked logits out instead of computing them twice.
    bits = (allowed[:, :, None] >> jnp.arange(32, dtype=jnp.int32)) & 1
    batch, width = logits.shape
    local = axis.local(bits.reshape(batch, -1), width)[:, :width]
    is_left = (local == 1) | ~(logits < jnp.inf)
    return jnp.where(is_left, logits, -jnp.inf)
