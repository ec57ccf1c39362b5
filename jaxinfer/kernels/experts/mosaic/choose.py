"""A router's choice in one launch: softmax, the likeliest experts, and their weights.

XLA sorts for it, in several launches. A warp holds a row's probabilities and looks for the largest
k times; then it takes the chosen ones in the order of their numbers, in which products with experts
are added up. A row has a warp of its own whatever the number of rows, so that its sums are added in
one order. Maxima are of integers, each of which is one instruction of a warp: floats that are not
negative are ordered as their bits are.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Float, Int32

from jaxinfer.kernels.mosaic.pages import RegisterLayout
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, rows_at_once, store_anyhow

ROWS = 4
"""Of a block at most, one a warp."""

_COLUMNS = 32  # of a warp, one a thread
_MOST_EXPERTS = 512
_PADDED = 64  # columns, as `places.py` and `lists.py` read them


def supports(num_experts: int, num_chosen: int) -> bool:
    """Whether the kernel takes a router of so many experts."""
    return num_experts % _COLUMNS == 0 and num_chosen <= num_experts <= _MOST_EXPERTS


def choose(
    logits: Float[Array, "T X"], num_chosen: int, *, normalize: bool, mark: bool = False
) -> tuple[jax.Array, ...]:
    """The experts of each token, ascending, and their weights, ``[k, P]``; P is T rounded up to 64.

    Columns behind T hold anything. A token with a NaN has NaN for its weights.

    Args:
        logits: of the router; weights are rounded to their dtype, and float32.
        num_chosen: k.
        normalize: a token's weights are divided by their sum.
        mark: a third result ``[P, X]`` in bfloat16 is 1 for each expert of a token, 0 for others
            and behind T.

    Raises:
        ValueError: `supports` says no.
    """
    T, X = logits.shape
    if not supports(X, num_chosen):
        raise ValueError(f"experts must number a multiple of 32 up to 512, not {X}")
    padded, rows = -(-T // _PADDED) * _PADDED, min(rows_at_once(T), ROWS)
    marks = (jax.ShapeDtypeStruct((padded, X), jnp.bfloat16),) if mark else ()
    return plgpu.kernel(
        functools.partial(_block, rows, num_chosen, normalize),
        out_type=(
            jax.ShapeDtypeStruct((num_chosen, padded), jnp.int32),
            jax.ShapeDtypeStruct((num_chosen, padded), jnp.float32),
            *marks,
        ),
        grid=((padded if mark else T) // rows,),
        grid_names=("rows",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(approx_math=False, unsafe_no_auto_barriers=True),
        kernel_name="choose_experts",
    )(logits)


class Likeliest(NamedTuple):
    """What rows of logits chose.

    Attributes:
        taken: k experts of each row, the first k of a row with a NaN.
        weights: of all experts, taken or not; NaN in a row with a NaN.
    """

    taken: Bool[Array, "T X"]
    weights: Float[Array, "T X"]


def likeliest(
    logits: Float[Array, "T X"],
    backwards: Int32[Array, "T X"],
    num_chosen: int,
    dtype: jax.typing.DTypeLike,
    *,
    normalize: bool,
) -> Likeliest:
    """The choice of rows in registers, inside a kernel.

    Args:
        logits: float32, in a layout of `row_layout` with at most `ROWS` rows, or its repetition.
        backwards: of `numbers_backwards` in that layout.
        num_chosen: k.
        dtype: weights, float32, are rounded to it.
        normalize: a row's weights are divided by the sum of those taken.
    """
    X = logits.shape[1]
    shifted = jnp.exp(logits - _spread(logits.max(axis=1), X))
    total = _spread(shifted.sum(axis=1), X)
    likely = shifted / total
    left = lax.bitcast_convert_type(likely, jnp.int32)
    for _ in range(num_chosen):
        # The first of the largest: of numbers backwards, so that it is a maximum, too.
        is_largest = left == _spread(left.max(axis=1), X)
        first = jnp.where(is_largest, backwards, jnp.zeros_like(backwards)).max(axis=1)
        left = jnp.where(backwards == _spread(first, X), jnp.full_like(left, -1), left)
    # Bits of NaN may say anything.
    is_first = backwards > X - num_chosen
    of_nan = jnp.where(is_first, jnp.full_like(left, -1), jnp.zeros_like(left))
    taken = jnp.where(total == total, left, of_nan) < 0
    if normalize:
        chosen = jnp.where(taken, likely, jnp.zeros_like(likely))
        likely = likely / _spread(chosen.sum(axis=1), X)
    return Likeliest(taken, likely.astype(dtype).astype(jnp.float32))


def numbers_backwards(rows: int, columns: int, layout: RegisterLayout) -> Int32[Array, "T X"]:
    """X, which is `columns`, for the first expert of each row, 1 for the last."""
    return columns - plgpu.broadcasted_iota(jnp.int32, (rows, columns), 1, layout=layout)


def _block(rows, num_chosen, normalize, logits, chosen, weights, *marks):
    first, (T, X), dtype = lax.axis_index("rows") * rows, logits.shape, logits.dtype
    own, layout = pl.ds(first, rows), row_layout(rows, X)
    given = logits.at[pl.ds(jnp.minimum(first, T - rows), rows), :]
    values = load_global(given, layout).astype(jnp.float32)
    backwards = numbers_backwards(rows, X, layout)
    taken, of_experts = likeliest(values, backwards, num_chosen, dtype, normalize=normalize)
    for each in marks:
        one = jnp.where(taken, jnp.ones_like(values), jnp.zeros_like(values))
        one = one * (first < T).astype(jnp.float32)
        store_anyhow(each.at[own, :], one.astype(each.dtype))
    left = jnp.where(taken, backwards, jnp.zeros_like(backwards))
    for i in range(num_chosen):
        largest = left.max(axis=1)
        is_it = backwards == _spread(largest, X)
        weight = jnp.where(is_it, of_experts, jnp.zeros_like(of_experts)).sum(axis=1)
        left = jnp.where(is_it, jnp.zeros_like(left), left)
        store_anyhow(chosen.at[i, own], X - largest)
        store_anyhow(weights.at[i, own], weight)


def _spread(of_rows: jax.Array, columns: int) -> jax.Array:
    """A row's value in all of its columns."""
    return lax.broadcast_in_dim(of_rows, (*of_rows.shape, columns), [0])
