"""Places for rows and lists of experts, for up to 64 tokens in one launch.

XLA takes some ten launches for what `groups.group` and `few_rows.list_experts` say, each as long as
these sums. Here one warpgroup does it on tensor cores: `C[token, expert]` says who chose whom, and
products of ones with it count, of triangles of ones add up what comes before. All are whole numbers
that bfloat16 holds, summed in float32.
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

from jaxinfer.kernels.experts.groups import ALIGNMENT, Groups, Tiles, most
from jaxinfer.kernels.experts.mosaic.few_rows import Listed
from jaxinfer.kernels.mosaic.pages import SWIZZLED, Ref
from jaxinfer.kernels.mosaic.rows import store_anyhow

ROWS = 64
"""Tokens, or tiles at once: wgmma's M. Arguments are padded to as many tokens."""

_EXPERTS = (64, 128)
_LAYOUT = plgpu.Layout.WGMMA
_OF_ROWS = _LAYOUT.reduce(1)


def supports(num_tokens: int, num_experts: int) -> bool:
    """Whether the kernels take so many."""
    return num_tokens <= ROWS and num_experts in _EXPERTS


def group(chosen: Int32[Array, "k N"], num_slots: int, num_experts: int, tile_rows: int) -> Groups:
    """`groups.group` of up to 64 tokens.

    Args:
        chosen: experts of each token, a column a token, padded to 64; `num_experts` is none.
        num_slots: experts that tokens can have chosen, at most.
        num_experts: X, 64 or 128.
        tile_rows: places of a tile at most.
    """
    num_places, num_tiles = most(num_slots, num_experts, tile_rows)
    padded = -(-num_tiles // ROWS) * ROWS
    tile = jax.ShapeDtypeStruct((padded,), jnp.int32)
    places, *tiles = _launch(
        functools.partial(_group, tile_rows, num_places),
        (jax.ShapeDtypeStruct(chosen.shape, jnp.int32), _scalar(), tile, tile, tile),
        num_experts,
        "group_rows",
    )(chosen)
    return Groups(places, num_places, Tiles(*tiles))


def list_experts(
    chosen: Int32[Array, "k N"],
    weights: Float[Array, "k N"],
    rows: int,
    num_experts: int,
) -> Listed:
    """`few_rows.list_experts` of up to 16 tokens.

    Args:
        chosen: experts of each token, a column a token, padded to 64; `num_experts` is none.
        weights: theirs, float32, of values that bfloat16 holds.
        rows: tokens that are no padding, at most 16.
        num_experts: X, 64 or 128.
    """
    slots, columns = min(rows * chosen.shape[0], num_experts), -(-rows // 8) * 8
    padded = -(-slots // ROWS) * ROWS
    total, experts, table = _launch(
        _list,
        (
            _scalar(),
            jax.ShapeDtypeStruct((padded,), jnp.int32),
            jax.ShapeDtypeStruct((padded, columns), jnp.float32),
        ),
        num_experts,
        "list_experts",
        {"w_smem": plgpu.SMEM((ROWS, num_experts), jnp.bfloat16, transforms=SWIZZLED)},
    )(chosen, weights)
    return Listed(total, experts[:slots], table[:slots])


def _scalar() -> jax.ShapeDtypeStruct:
    """A number, as often as a layout has rows."""
    return jax.ShapeDtypeStruct((ROWS,), jnp.int32)


def _launch(
    block: Callable[..., None],
    out: tuple[jax.ShapeDtypeStruct, ...],
    num_experts: int,
    name: str,
    more: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    return plgpu.kernel(
        block,
        out_type=out,
        scratch_types={
            "c_smem": plgpu.SMEM((ROWS, num_experts), jnp.bfloat16, transforms=SWIZZLED),
            "u_smem": plgpu.SMEM((num_experts, num_experts), jnp.bfloat16, transforms=SWIZZLED),
            **(more or {}),
        },
        # All that one thread writes and another reads is committed in between.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name=name,
    )


def _group(tile_rows, num_places, chosen, places, total, experts, firsts, ends, *, c_smem, u_smem):
    _keep_choice(chosen, c_smem, u_smem)
    X = c_smem.shape[1]
    sizes = _up(_product(_ones(), c_smem, X), ALIGNMENT)
    starts = _before(sizes, u_smem)
    place = starts + _product(_triangle(), c_smem, X)
    for j in range(chosen.shape[0]):
        expert = _load(chosen.at[j, pl.ds(0, ROWS)])
        found = jnp.where(_spread(expert, X) == _numbers(X), place, jnp.zeros_like(place))
        found = found.sum(axis=1).astype(jnp.int32)
        found = jnp.where(expert < X, found, jnp.full_like(found, num_places))
        store_anyhow(places.at[j, pl.ds(0, ROWS)], found)
    in_tiles = _up(sizes, tile_rows) / tile_rows
    first_tile = _before(in_tiles, u_smem)
    end_tile = first_tile + in_tiles
    store_anyhow(total, end_tile.max(axis=1).astype(jnp.int32))
    for n in range(experts.shape[0] // ROWS):
        number = _rows(X).astype(jnp.float32) + n * ROWS
        is_own = (first_tile <= number) & (number < end_tile)
        first = starts + (number - first_tile) * tile_rows
        end = jnp.minimum(first + tile_rows, starts + sizes)
        tiles = pl.ds(n * ROWS, ROWS)
        store_anyhow(experts.at[tiles], _select(is_own, _numbers(X).astype(jnp.float32)))
        store_anyhow(firsts.at[tiles], _select(is_own, first / ALIGNMENT))
        store_anyhow(ends.at[tiles], _select(is_own, end / ALIGNMENT))


def _list(chosen, weights, total, experts, table, *, c_smem, u_smem, w_smem):
    _keep_choice(chosen, c_smem, u_smem)
    X, columns = c_smem.shape[1], table.shape[1]
    of_rows = _zeros(X)
    for j in range(chosen.shape[0]):
        weight = _spread(_load(weights.at[j, pl.ds(0, ROWS)]), X)
        is_it = _spread(_load(chosen.at[j, pl.ds(0, ROWS)]), X) == _numbers(X)
        of_rows = jnp.where(is_it, weight, of_rows)
    store_anyhow(w_smem, of_rows.astype(jnp.bfloat16))
    plgpu.commit_smem()
    counts = _product(_ones(), c_smem, X)
    is_listed = jnp.minimum(counts, jnp.ones_like(counts))
    place = _before(is_listed, u_smem)
    store_anyhow(total, is_listed.sum(axis=1).astype(jnp.int32))
    for n in range(experts.shape[0] // ROWS):
        number = _rows(X).astype(jnp.float32) + n * ROWS
        is_it = (place == number) & (is_listed > 0)
        slots = pl.ds(n * ROWS, ROWS)
        store_anyhow(experts.at[slots], _select(is_it, _numbers(X).astype(jnp.float32)))
        one = jnp.where(is_it, jnp.ones_like(place), jnp.zeros_like(place)).astype(jnp.bfloat16)
        of_slots = _product(one, w_smem.at[pl.ds(0, columns)].transpose((1, 0)), columns)
        store_anyhow(table.at[slots, :], of_slots)


def _keep_choice(chosen: Ref, c_smem: Ref, u_smem: Ref) -> None:
    """Who chose whom, and for each expert those that come after it, in shared memory."""
    X = c_smem.shape[1]
    choice = _zeros(X)
    for j in range(chosen.shape[0]):
        is_it = _spread(_load(chosen.at[j, pl.ds(0, ROWS)]), X) == _numbers(X)
        choice = jnp.where(is_it, jnp.ones_like(choice), choice)
    store_anyhow(c_smem, choice.astype(jnp.bfloat16))
    for n in range(X // ROWS):
        is_after = _rows(X) + n * ROWS < _numbers(X)
        after = jnp.where(is_after, jnp.ones_like(_zeros(X)), _zeros(X))
        store_anyhow(u_smem.at[pl.ds(n * ROWS, ROWS)], after.astype(jnp.bfloat16))
    plgpu.commit_smem()


def _product(first: jax.Array, second: Any, columns: int) -> jax.Array:
    """The product ``[ROWS, columns]`` of a matrix in registers and one in shared memory."""

    def multiply(total):
        plgpu.wgmma(total, first, second)
        return total[...]

    return pl.run_scoped(multiply, plgpu.ACC((ROWS, columns), jnp.float32))


def _before(values: jax.Array, u_smem: Ref) -> jax.Array:
    """In each column the sum of those before it; of values that bfloat16 holds."""
    return _product(values.astype(jnp.bfloat16), u_smem, values.shape[1])


def _up(values: jax.Array, multiple: int) -> jax.Array:
    """The multiple that is not less, of whole numbers."""
    whole = (values.astype(jnp.int32) + (multiple - 1)) // multiple
    return whole.astype(jnp.float32) * multiple


def _select(is_own: jax.Array, values: jax.Array) -> jax.Array:
    """The one value of each row that is its own."""
    return jnp.where(is_own, values, jnp.zeros_like(values)).sum(axis=1).astype(jnp.int32)


def _load(ref: Ref) -> jax.Array:
    return plgpu.load(ref, layout=_OF_ROWS, optimized=False)


def _spread(of_rows: jax.Array, columns: int) -> jax.Array:
    return lax.broadcast_in_dim(of_rows, (ROWS, columns), [0])


def _numbers(columns: int) -> jax.Array:
    return plgpu.broadcasted_iota(jnp.int32, (ROWS, columns), 1, layout=_LAYOUT)


def _rows(columns: int) -> jax.Array:
    return plgpu.broadcasted_iota(jnp.int32, (ROWS, columns), 0, layout=_LAYOUT)


def _zeros(columns: int) -> jax.Array:
    return plgpu.layout_cast(jnp.zeros((ROWS, columns), jnp.float32), _LAYOUT)


def _ones() -> jax.Array:
    return plgpu.layout_cast(jnp.ones((ROWS, ROWS), jnp.bfloat16), _LAYOUT)


def _triangle() -> jax.Array:
    is_earlier = _numbers(ROWS) < _rows(ROWS)
    return jnp.where(is_earlier, jnp.ones_like(_zeros(ROWS)), _zeros(ROWS)).astype(jnp.bfloat16)
