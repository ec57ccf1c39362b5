"""Samples by inverse-CDF search: finds the token at a random point of a row's distribution.

One random point a row and sums over blocks, instead of noise for every token of the vocabulary.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxinfer.serving.sampling.vocab_axis import VocabAxis, split_blocks

Weigher = Callable[[jax.Array, jax.Array], jax.Array]
"""`(logits, ids) -> weights`, elementwise; see `weights.weights`."""


def draw_tokens(
    logits: Float[Array, "B V"], weigh: Weigher, keys: jax.Array, axis: VocabAxis
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """Draw one token a row with probability proportional to its weight.

    float32 has no room for a point fine enough for a large vocabulary: on a grid of 2^-23 a token
    of probability 1e-5 would be wrong by a percent. So the point is a cell's middle and a small
    offset within the cell, which is added when the block is known and numbers are small.

    Args:
        logits: float32 logits, this device's shard of them.
        keys: One random key a row, `[B]`, used for nothing else: its two words are the random bits.

    Returns:
        Token ids, int32 `[B]`, in [0, V), and the rows' total weights, float32 `[B]`.
    """
    bits = jax.random.key_data(keys) >> 9
    cell, offset = jnp.split(bits.astype(jnp.float32) + 0.5, 2, axis=1)
    cell = cell[:, 0] * 2.0**-23
    offset = (offset[:, 0] * 2.0**-23 - 0.5) * 2.0**-23
    return find_token(logits, weigh, lambda total: (cell * total, offset * total), axis)


def find_token(
    logits: Float[Array, "B V"],
    weigh: Weigher,
    target: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    axis: VocabAxis,
) -> tuple[Int[Array, "B"], Float[Array, "B"]]:
    """Find the token at which the cumulative weight, in order of ids, first exceeds a target.

    The search goes from devices to blocks to tokens. For any rounding, a token with weight 0 is
    found only where a whole row has weight 0 (or NaN); the result always lies in [0, V).

    Args:
        logits: float32 logits, this device's shard of them.
        target: Maps the rows' total weights `[B]` to the points searched `[B]` and small offsets
            `[B]` that are added to them within the block.

    Returns:
        The token ids, int32 `[B]`, and the rows' total weights, float32 `[B]`.
    """
    width = logits.shape[1]
    blocks, ids = split_blocks(logits, axis)
    # Behind a barrier, or XLA would add up the total from the logits again.
    sums = lax.optimization_barrier(weigh(blocks, ids[None]).sum(-1))
    device_sums = axis.stack(sums.sum(-1))
    total = device_sums.sum(-1)
    # Behind a barrier, or each kernel of the search would compute them again, random bits included.
    point, offset = lax.optimization_barrier(target(total))
    owner, remaining, _ = _first_above(device_sums, point)
    point = point if axis.name is None else remaining
    block, point, mass = _first_above(sums, point)
    # Reflected at the block's edges: clamped, the rare token at an edge would become common.
    point = jnp.abs(point + offset)
    point = jnp.where(point > mass, jnp.maximum(2.0 * mass - point, 0.0), point)
    row = jnp.arange(logits.shape[0])
    column, _, _ = _first_above(weigh(blocks[row, block], ids[block]), point)
    # The padding of the last block has weight 0; only a row of NaN could end there.
    local = jnp.minimum(block * ids.shape[1] + column, width - 1)
    token = local + axis.offset(width)
    if axis.name is not None:
        token = axis.sum(jnp.where(owner == axis.index(), token, 0))
    return token, total


def _first_above(
    weights: Float[Array, "B n"], target: Float[Array, "B"]
) -> tuple[Int[Array, "B"], Float[Array, "B"], Float[Array, "B"]]:
    """Return each row's first index whose cumulative weight exceeds the target.

    Also return what remains of the target there, and the weight of the index.

    A parallel sum need not be monotone to the last bit, and the target may reach the total; so
    only positive weights are candidates, and the last of them is the fallback.
    """
    cumulative = _cumulative(weights)
    count = weights.shape[1]
    place = jnp.arange(count, dtype=jnp.int32)[None, :]
    positive = weights > 0
    above = positive & (cumulative > target[:, None])
    # One reduction for both: first come the places above, then the others, the last ahead.
    rank = jnp.where(above, place, jnp.where(positive, 2 * count - 1 - place, 2 * count - 1))
    best = rank.min(1)
    index = jnp.where(best < count, best, 2 * count - 1 - best)
    weight = jnp.take_along_axis(weights, index[:, None], axis=1)[:, 0]
    before = jnp.take_along_axis(cumulative, index[:, None], axis=1)[:, 0] - weight
    return index, jnp.clip(target - before, 0.0, weight), weight


def _cumulative(x: Float[Array, "B n"]) -> Float[Array, "B n"]:
    """Return `cumsum(x, axis=1)`, as sums over triangles.

    XLA's own, a tree of windows, ends up in every kernel that reads it and is slow to compile.
    Groups near the root of n keep the work at about 2 n^1.5 additions a row.
    """
    batch, count = x.shape
    width = math.isqrt(count - 1) + 1 if count > 1 else 1
    groups = jnp.pad(x, ((0, 0), (0, -count % width))).reshape(batch, -1, width)
    place = jnp.arange(width)
    within = jnp.where(place <= place[:, None], groups[:, :, None, :], 0.0).sum(-1)
    group = jnp.arange(groups.shape[1])
    before = jnp.where(group < group[:, None], within[:, None, :, -1], 0.0).sum(-1)
    return (within + before[:, :, None]).reshape(batch, -1)[:, :count]
