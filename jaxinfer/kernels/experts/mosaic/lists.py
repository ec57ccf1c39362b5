"""Lists of the experts that up to 16 tokens chose, in one launch, or with their choice.

XLA takes some ten launches for what `few_rows.list_experts` says. Here one warpgroup does it:
`C[token, expert]` says who chose whom, and products of ones with it count on tensor cores, of
triangles of ones add up what comes before. All are whole numbers that bfloat16 holds, summed in
float32.

Where nothing but the list needs the choice, `choose_and_list` makes both: `C` is then what was
taken, which no one looks for again by numbers of experts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.experts.mosaic import choose
from jaxinfer.kernels.experts.mosaic.few_rows import Listed
from jaxinfer.kernels.experts.mosaic.warpgroup import (
    EXPERTS,
    OF_ROWS,
    ROWS,
    column_numbers,
    keep_experts,
    launch,
    load,
    product,
    row_numbers,
    rowwise,
    scalar,
    sum_where,
    zeros,
)
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref, RegisterLayout, Scalar
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_MOST_TOKENS = 16


def supports(num_tokens: int, num_experts: int) -> bool:
    """Whether `list_experts` takes so many."""
    return num_tokens <= _MOST_TOKENS and num_experts in EXPERTS


def supports_logits(logits: Float[Array, "T X"]) -> bool:
    """Whether `choose_and_list` takes them."""
    return supports(*logits.shape) and logits.dtype == jnp.bfloat16


def list_experts(
    chosen: Int32[Array, "k N"],
    weights: Float[Array, "k N"],
    is_token: Int32[Array, " N"],
    rows: int,
    num_experts: int,
) -> Listed:
    """`few_rows.list_experts` of up to 16 tokens; the list's length is a multiple of 64.

    Args:
        chosen: experts of each token, a column a token, N of them 64; `num_experts` is none.
        weights: theirs, float32, of values that bfloat16 holds.
        is_token: 0 for columns that chose none, whatever they hold.
        rows: columns that may be tokens, at most 16.
        num_experts: X, 64 or 128.
    """
    scratch = {
        "e_smem": plgpu.SMEM(chosen.shape, jnp.int32),
        "v_smem": plgpu.SMEM(weights.shape, jnp.float32),
    }
    listing = _launch_list(_list, rows, chosen.shape[0], num_experts, "list_experts", scratch)
    return Listed(*listing(chosen, weights, is_token))


def choose_and_list(
    logits: Float[Array, "T X"], is_token: Int32[Array, " N"], num_chosen: int, *, normalize: bool
) -> Listed:
    """`list_experts` of what `choose.choose` says, and bit for bit the same.

    Args:
        logits: of the router, in bfloat16, of at most 16 tokens and 64 or 128 experts.
        is_token: 0 for columns that chose none, N of them 64.
        num_chosen: k.
        normalize: a token's weights are divided by their sum.
    """
    T, X = logits.shape
    block = functools.partial(_choose_and_list, num_chosen, normalize)
    listing = _launch_list(block, T, num_chosen, X, "choose_and_list", {})
    return Listed(*listing(logits, is_token))


def _launch_list(
    block: Callable[..., None],
    rows: int,
    num_chosen: int,
    num_experts: int,
    name: str,
    scratch: dict[str, Any],
) -> Callable[..., Any]:
    """A launch that gives what `Listed` holds, for whole `ROWS` of experts."""
    columns = -(-rows // 8) * 8
    slots = -(-min(rows * num_chosen, num_experts) // ROWS) * ROWS

    def matrix(rows: int) -> Any:
        return plgpu.SMEM((rows, num_experts), jnp.bfloat16, transforms=SWIZZLED)

    return launch(
        block,
        (
            scalar(),
            jax.ShapeDtypeStruct((slots,), jnp.int32),
            jax.ShapeDtypeStruct((slots, columns), jnp.float32),
        ),
        name,
        scratch | {"c_smem": matrix(ROWS), "u_smem": matrix(num_experts), "w_smem": matrix(ROWS)},
    )


def _list(chosen, weights, is_token, total, experts, table, *, e_smem, v_smem, c_smem, u_smem,
          w_smem):  # fmt: skip
    X = c_smem.shape[1]
    given = [load(weights.at[j, pl.ds(0, ROWS)], OF_ROWS) for j in range(chosen.shape[0])]
    for j, weight in enumerate(given):
        store_anyhow(v_smem.at[j], weight)
    keep_experts(chosen, is_token, e_smem, X)

    def add(j: Scalar, so_far: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        is_it = rowwise(load(e_smem.at[j], OF_ROWS), X) == column_numbers(X)
        weight = rowwise(load(v_smem.at[j], OF_ROWS), X)
        choice, of_rows = so_far
        choice = jnp.where(is_it, jnp.ones_like(choice), choice)
        return choice, jnp.where(is_it, weight, of_rows)

    choice, of_rows = lax.fori_loop(0, chosen.shape[0], add, (zeros(X), zeros(X)))
    store_anyhow(c_smem, choice.astype(jnp.bfloat16))
    store_anyhow(w_smem, of_rows.astype(jnp.bfloat16))
    _keep_after(u_smem)
    plgpu.commit_smem()
    _write_list(total, experts, table, c_smem, u_smem, w_smem)


def _choose_and_list(num_chosen, normalize, logits, is_token, total, experts, table, *, c_smem,
                     u_smem, w_smem):  # fmt: skip
    X, columns = c_smem.shape[1], table.shape[1]
    layout = row_layout(choose.ROWS, X)
    is_one = load(is_token.at[pl.ds(0, columns)], layout.reduce(1))
    values = _load_rows(logits, columns, layout)
    _keep_after(u_smem)  # while values arrive
    behind = jnp.zeros((ROWS - columns, X), jnp.bfloat16)
    store_anyhow(c_smem.at[pl.ds(columns, ROWS - columns)], plgpu.layout_cast(behind, layout))
    backwards = choose.numbers_backwards(columns, X, layout)
    taken, weights = choose.likeliest(
        values, backwards, num_chosen, logits.dtype, normalize=normalize
    )
    is_chosen = taken & (lax.broadcast_in_dim(is_one, (columns, X), [0]) > 0)
    zero = jnp.zeros_like(weights)
    choice = jnp.where(is_chosen, jnp.ones_like(weights), zero)
    own = pl.ds(0, columns)
    store_anyhow(c_smem.at[own], choice.astype(jnp.bfloat16))
    store_anyhow(w_smem.at[own], jnp.where(is_chosen, weights, zero).astype(jnp.bfloat16))
    plgpu.commit_smem()
    _write_list(total, experts, table, c_smem, u_smem, w_smem)


def _load_rows(logits: Ref, rows: int, layout: RegisterLayout) -> jax.Array:
    """Logits in float32, and zeros behind their rows, for which the layout may be too large."""
    T, X = logits.shape
    if rows == T:
        return load_global(logits, layout).astype(jnp.float32)
    # All are asked for before the first is needed.
    asked = [load_global(logits.at[row], layout.reduce(0)) for row in range(T)]
    number = plgpu.broadcasted_iota(jnp.int32, (rows, X), 0, layout=layout)
    values = plgpu.layout_cast(jnp.zeros((rows, X), jnp.float32), layout)
    for row, found in enumerate(asked):
        spread = lax.broadcast_in_dim(found.astype(jnp.float32), (rows, X), [1])
        values = jnp.where(number == row, spread, values)
    return values


def _keep_after(u_smem: Ref) -> None:
    """1 for each expert behind another, in a row of the other, 0 for the rest."""
    X = u_smem.shape[1]
    for n in range(X // ROWS):
        is_after = row_numbers(X) + n * ROWS < column_numbers(X)
        after = jnp.where(is_after, jnp.ones_like(zeros(X)), zeros(X))
        store_anyhow(u_smem.at[pl.ds(n * ROWS, ROWS)], after.astype(jnp.bfloat16))


def _write_list(
    total: Ref, experts: Ref, table: Ref, c_smem: Ref, u_smem: Ref, w_smem: Ref
) -> None:
    """What `Listed` holds, of choice and weights ``[ROWS, X]`` and of `_keep_after`."""
    X, columns = c_smem.shape[1], table.shape[1]
    counts = product(_ones(), c_smem, X)
    is_listed = jnp.minimum(counts, jnp.ones_like(counts))
    store_anyhow(total, is_listed.sum(axis=1).astype(jnp.int32))
    place = product(is_listed.astype(jnp.bfloat16), u_smem, X)
    place = jnp.where(is_listed > 0, place, jnp.full_like(place, -1.0))
    for n in range(experts.shape[0] // ROWS):
        number = row_numbers(X).astype(jnp.float32) + n * ROWS
        is_it = place == number
        slots = pl.ds(n * ROWS, ROWS)
        expert = sum_where(is_it, column_numbers(X).astype(jnp.float32))
        store_anyhow(experts.at[slots], expert.astype(jnp.int32))
        one = jnp.where(is_it, jnp.ones_like(place), jnp.zeros_like(place)).astype(jnp.bfloat16)
        of_slots = product(one, w_smem.at[pl.ds(0, columns)].transpose((1, 0)), columns)
        store_anyhow(table.at[slots, :], of_slots)


def _ones() -> jax.Array:
    return plgpu.layout_cast(jnp.ones((ROWS, ROWS), jnp.bfloat16), plgpu.Layout.WGMMA)
