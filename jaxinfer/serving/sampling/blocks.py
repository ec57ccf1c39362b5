"""The vocabulary seen as blocks: large reductions become many small ones that run side by side."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.serving.sampling.vocab_axis import VocabAxis


def block_width(vocab: int) -> int:
    """Return a width for blocks of a vocabulary: near its root, a divisor where there is one."""
    root = max(1, math.isqrt(vocab))
    divisors = [w for w in range(max(1, root // 4), 4 * root + 1) if vocab % w == 0]
    return min(divisors, key=lambda w: abs(w - root), default=root)


def split_blocks(logits: Float[Array, "B V"], axis: VocabAxis) -> tuple[jax.Array, jax.Array]:
    """Return logits as `[B, blocks, width]`, padded with -inf, and their ids `[blocks, width]`."""
    batch, vocab = logits.shape
    width = block_width(vocab)
    blocks = -(-vocab // width)
    if blocks * width > vocab:
        padding = ((0, 0), (0, blocks * width - vocab))
        logits = jnp.pad(logits, padding, constant_values=-jnp.inf)
    ids = jnp.arange(blocks * width, dtype=jnp.int32) + axis.offset(vocab)
    return logits.reshape(batch, blocks, width), ids.reshape(blocks, width)
