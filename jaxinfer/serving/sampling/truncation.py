"""Top-k and top-p as thresholds, found by searching the bits of the logits: no sort, exact.

A token's key (see `weights.sort_keys`) is a 31-bit integer that orders tokens as their scaled
logits do. The k-th largest key, or the key at which the probability reaches p, is built digit by
digit from the top: each pass over the logits counts what lies above a few candidate keys.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from jaxinfer.serving.sampling.draw import find_token
from jaxinfer.serving.sampling.rows import RowParameters
from jaxinfer.serving.sampling.vocab_axis import VocabAxis
from jaxinfer.serving.sampling.weights import LARGEST_KEY, RowDistribution, sort_keys, weight_of_key

TOP_P_TOLERANCE = 1e-6
"""Relative slack of p, above float32's rounding of long sums: 0.3 of ten equal tokens is three."""


MOST_TIES = 2**24
"""More tokens than any vocabulary has, and the last integer up to which float32 counts."""


KEY_BITS = 31
_DIGIT_BITS = 2
_PARTS = 32

DROPPED = -1
"""The key of a token that `min_p` has dropped: below every threshold."""

Measure = Callable[[jax.Array], jax.Array]
"""The quantity that a search sums, as a function of the keys: their number or their weights."""


def truncate(
    logits: Float[Array, "B V"], rows: RowParameters, before: RowDistribution, axis: VocabAxis
) -> RowDistribution:
    """Narrow the rows' distributions by `top_k`, then the rest by `top_p`.

    Exactly k tokens remain, or all that pass `min_p` if they are fewer. Top-p keeps the smallest
    set of the likeliest tokens that reaches p, the one that crosses it included. Among tokens that
    tie at the boundary the lowest ids are kept, in both.

    Args:
        logits: float32 logits after all edits, this device's shard of them.
        rows: The rows' parameters; greedy rows are left alone.
        before: The distributions after temperature and `min_p`.
    """
    keys = _in_parts(sort_keys(logits, before), before.threshold)
    has_k = (rows.top_k > 0) & ~rows.greedy
    has_p = (rows.top_p < 1.0) & ~rows.greedy
    k = jnp.where(has_k, rows.top_k, LARGEST_KEY)

    def above(measure: Measure, threshold: jax.Array) -> jax.Array:
        return axis.sum(_sum_from(keys, measure, threshold + 1))

    k_key = jnp.maximum(_search(keys, _count, k, axis), before.threshold)
    ties = axis.sum((keys == k_key[:, None, None]).astype(jnp.int32).sum((1, 2)))
    ties = jnp.minimum(ties, k - above(_count, k_key)).astype(jnp.float32)
    k_mass = above(weight_of_key, k_key) + ties * weight_of_key(k_key)

    goal = rows.top_p * k_mass * (1.0 - TOP_P_TOLERANCE)
    p_key = jnp.where(has_p, _search(keys, weight_of_key, goal, axis), 0)
    threshold = jnp.maximum(k_key, p_key)
    keep_k = k - above(_count, threshold)
    missing = (goal - above(weight_of_key, threshold)) / jnp.maximum(
        weight_of_key(threshold), 1e-37
    )
    keep_p = jnp.ceil(jnp.clip(missing, 1.0, MOST_TIES)).astype(jnp.int32)
    keep = jnp.minimum(jnp.clip(keep_k, 1, MOST_TIES), jnp.where(has_p, keep_p, MOST_TIES))
    last_tie = _nth_tie(logits, before._replace(threshold=threshold), keep, axis)
    return before._replace(
        threshold=jnp.where(has_k | has_p, threshold, before.threshold),
        last_tie=jnp.where(has_k | has_p, last_tie, LARGEST_KEY),
    )


def _search(
    keys: Int[Array, "B N M"], measure: Measure, goal: jax.Array, axis: VocabAxis
) -> Int[Array, "B"]:
    """Return the largest key t for which the measure of keys >= t reaches `goal` `[B]`, or 0.

    A pass over the keys finds a few bits of it; their number does not affect the result. On a GPU,
    where a pass costs reading the keys, it computes many sums; on a CPU, where each sum costs time,
    one.
    """
    search = functools.partial(_search_digits, measure=measure, axis=axis)
    return lax.platform_dependent(
        keys,
        goal,
        cpu=functools.partial(search, digit_bits=1),
        default=functools.partial(search, digit_bits=_DIGIT_BITS),
    )


def _search_digits(
    keys: Int[Array, "B N M"],
    goal: jax.Array,
    *,
    measure: Measure,
    axis: VocabAxis,
    digit_bits: int,
) -> Int[Array, "B"]:
    digits = range(1, 2**digit_bits)

    def one_pass(i: jax.Array | int, found: jax.Array) -> jax.Array:
        # The last digit may overlap the one before; the bits that are known are found again.
        shift = jnp.maximum(KEY_BITS - digit_bits * (i + 1), 0)
        found = found & ~(jnp.left_shift(2**digit_bits, shift) - 1)
        candidates = [found + jnp.left_shift(digit, shift) for digit in digits]
        sums = axis.sum(_sums_from(keys, measure, candidates))
        digit = (sums >= goal[:, None]).astype(jnp.int32).sum(1)
        return found + jnp.left_shift(digit, shift)

    found = jnp.zeros_like(goal, jnp.int32)
    return lax.fori_loop(0, -(-KEY_BITS // digit_bits), one_pass, found)


def _sums_from(
    keys: Int[Array, "B N M"], measure: Measure, least: Sequence[jax.Array]
) -> Num[Array, "B C"]:
    """Return the measures of the keys that are at least each of C bounds `[B]` (above 0).

    All of them in one reduction, which reads the keys once.
    """
    measured = measure(keys)
    # A key may be the largest integer, and a bound one more than it, which wraps round.
    reached = [(keys >= bound[:, None, None]) & (bound[:, None, None] > 0) for bound in least]
    parts = [jnp.where(each, measured, jnp.zeros_like(measured)) for each in reached]
    zeros = [jnp.zeros((), measured.dtype)] * len(parts)
    sums = lax.reduce(
        parts, zeros, lambda left, right: [a + b for a, b in zip(left, right, strict=True)], (2,)
    )
    return jnp.stack(sums, axis=1).sum(2)


def _sum_from(keys: jax.Array, measure: Measure, least: jax.Array) -> jax.Array:
    """`_sums_from` one bound."""
    return _sums_from(keys, measure, [least])[:, 0]


def _in_parts(keys: Int[Array, "B V"], least: jax.Array) -> Int[Array, "B N M"]:
    """The keys `[B, N, M]` in parts that are summed side by side, without keys below `least`."""
    keys = jnp.where(keys >= least[:, None], keys, DROPPED)
    keys = jnp.pad(keys, ((0, 0), (0, -keys.shape[1] % _PARTS)), constant_values=DROPPED)
    return keys.reshape(keys.shape[0], _PARTS, -1)


def _count(keys: jax.Array) -> jax.Array:
    return jnp.ones_like(keys)


def _nth_tie(
    logits: Float[Array, "B V"], rows: RowDistribution, n: Int[Array, "B"], axis: VocabAxis
) -> Int[Array, "B"]:
    """Return the id of the n-th token, from 1, whose key is the threshold, or of the last one."""

    def is_tie(columns: jax.Array, _ids: jax.Array) -> jax.Array:
        shape = (-1,) + (1,) * (columns.ndim - 1)
        tie = sort_keys(columns, rows) == rows.threshold.reshape(shape)
        return tie.astype(jnp.float32)

    point = n.astype(jnp.float32) - 0.5
    return find_token(logits, is_tie, lambda _: (point, jnp.zeros_like(point)), axis)[0]
