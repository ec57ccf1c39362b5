"""A router's choice in one launch: softmax, the likeliest experts, and their weights.

XLA sorts for it, in several launches. A warp holds a row's probabilities and looks for the largest
k times; then it takes the chosen ones in the order of their numbers, in which products with experts
are added up.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.mosaic.rows import load_global, row_layout, rows_at_once, store_anyhow

_COLUMNS = 32  # of a warp, one a thread
_MOST_EXPERTS = 512
_PADDED = 64  # columns, as `sorting.py` reads them


def supports(num_experts: int, num_chosen: int) -> bool:
    """Whether the kernel takes a router of so many experts."""
    return num_experts % _COLUMNS == 0 and num_chosen <= num_experts <= _MOST_EXPERTS


def choose(
    logits: Float[Array, "T X"], num_chosen: int, *, normalize: bool
) -> tuple[Int32[Array, "k P"], Float[Array, "k P"]]:
    """The experts of each token, ascending, and their weights; P is T rounded up to 64.

    Columns behind T hold anything. A token with a NaN has NaN for its weights.

    Args:
        logits: of the router; weights are rounded to their dtype, and float32.
        num_chosen: k.
        normalize: a token's weights are divided by their sum.

    Raises:
        ValueError: `supports` says no.
    """
    T, X = logits.shape
    if not supports(X, num_chosen):
        raise ValueError(f"experts must number a multiple of 32 up to 512, not {X}")
    padded, rows = -(-T // _PADDED) * _PADDED, rows_at_once(T)
    return plgpu.kernel(
        functools.partial(_block, rows, num_chosen, normalize),
        out_type=(
            jax.ShapeDtypeStruct((num_chosen, padded), jnp.int32),
            jax.ShapeDtypeStruct((num_chosen, padded), jnp.float32),
        ),
        grid=(T // rows,),
        grid_names=("rows",),
        # Nothing is both read and written.
        compiler_params=plgpu.CompilerParams(approx_math=False, unsafe_no_auto_barriers=True),
        kernel_name="choose_experts",
    )(logits)


def _block(rows, num_chosen, normalize, logits, chosen, weights):
    own = pl.ds(lax.axis_index("rows") * rows, rows)
    X = logits.shape[1]
    layout = row_layout(rows, X)
    values = load_global(logits.at[own, :], layout).astype(jnp.float32)
    number = plgpu.broadcasted_iota(jnp.int32, (rows, X), 1, layout=layout).astype(jnp.float32)

    def spread(of_rows):
        return lax.broadcast_in_dim(of_rows, (rows, X), [0])

    shifted = jnp.exp(values - spread(values.max(axis=1)))
    likely = shifted / spread(shifted.sum(axis=1))
    left, taken = likely, jnp.zeros_like(likely)
    for _ in range(num_chosen):
        # The first of the largest: as a number, so that it is a maximum, too.
        largest = spread(left.max(axis=1))
        backwards = jnp.where(left == largest, X - number, jnp.zeros_like(number))
        is_next = number == spread(X - backwards.max(axis=1))
        taken = jnp.where(is_next, jnp.ones_like(taken), taken)
        left = jnp.where(is_next, jnp.full_like(left, -1.0), left)
    if normalize:
        likely = likely / spread((likely * taken).sum(axis=1))
    rounded = likely.astype(logits.dtype).astype(jnp.float32)
    total = shifted.sum(axis=1)
    last = jnp.full_like(total, -1.0)
    for i in range(num_chosen):
        is_later = (taken > 0) & (number > spread(last))
        backwards = jnp.where(is_later, X - number, jnp.zeros_like(number)).max(axis=1)
        last = X - backwards
        weight = jnp.where(number == spread(last), rounded, jnp.zeros_like(rounded)).sum(axis=1)
        # Where there is a NaN nothing is the largest: the first experts, so that it is seen.
        is_known = total == total
        weight = jnp.where(is_known, weight, total)
        index = jnp.where(is_known, last, jnp.full_like(last, float(i)))
        store_anyhow(chosen.at[i, own], index.astype(jnp.int32))
        store_anyhow(weights.at[i, own], weight)
