"""Matrices of a warpgroup in wgmma's layout: 64 rows by numbers of experts or of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic.pages import Ref
from jaxinfer.kernels.mosaic.rows import store_anyhow

ROWS = 64
"""Tokens, or tiles at once: wgmma's M. Arguments are padded to as many tokens."""
EXPERTS = (64, 128)
"""Numbers of experts that are columns."""

_LAYOUT = plgpu.Layout.WGMMA
OF_ROWS, OF_COLUMNS = _LAYOUT.reduce(1), _LAYOUT.reduce(0)


def launch(
    block: Callable[..., None],
    out: tuple[jax.ShapeDtypeStruct, ...],
    name: str,
    scratch: dict[str, Any],
) -> Callable[..., Any]:
    """A kernel of one warpgroup."""
    return plgpu.kernel(
        block,
        out_type=out,
        scratch_types=scratch,
        # All that one thread writes and another reads is committed in between.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name=name,
    )


def scalar() -> jax.ShapeDtypeStruct:
    """A number, as often as a layout has rows."""
    return jax.ShapeDtypeStruct((ROWS,), jnp.int32)


def keep_experts(chosen: Ref, is_token: Ref, e_smem: Ref, num_experts: int) -> None:
    """The experts of tokens ``[k, 64]`` in shared memory, and `num_experts`, none, of padding."""
    is_one = load(is_token.at[pl.ds(0, ROWS)], OF_ROWS) > 0
    # All are asked for before the first is needed.
    given = [load(chosen.at[j, pl.ds(0, ROWS)], OF_ROWS) for j in range(chosen.shape[0])]
    for j, expert in enumerate(given):
        known = jnp.where(is_one, expert, jnp.full_like(expert, num_experts))
        store_anyhow(e_smem.at[j], known)
    plgpu.commit_smem()


def product(first: jax.Array, second: Any, columns: int) -> jax.Array:
    """The product ``[ROWS, columns]`` of a matrix in registers and one in shared memory."""

    def multiply(total):
        plgpu.wgmma(total, first, second)
        return total[...]

    return pl.run_scoped(multiply, plgpu.ACC((ROWS, columns), jnp.float32))


def sum_where(is_it: jax.Array, values: jax.Array) -> jax.Array:
    """The sum of some values of each row."""
    return jnp.where(is_it, values, jnp.zeros_like(values)).sum(axis=1)


def load(ref: Ref, layout: Any) -> jax.Array:
    """A vector."""
    return plgpu.load(ref, layout=layout, optimized=False)


def rowwise(of_rows: jax.Array, columns: int) -> jax.Array:
    """A value of each row in all of its columns."""
    return lax.broadcast_in_dim(of_rows, (ROWS, columns), [0])


def columnwise(of_columns: jax.Array) -> jax.Array:
    """A value of each column in all rows."""
    return lax.broadcast_in_dim(of_columns, (ROWS, *of_columns.shape), [1])


def column_numbers(columns: int) -> jax.Array:
    """Each column's number in all rows."""
    return plgpu.broadcasted_iota(jnp.int32, (ROWS, columns), 1, layout=_LAYOUT)


def row_numbers(columns: int) -> jax.Array:
    """Each row's number in all columns."""
    return plgpu.broadcasted_iota(jnp.int32, (ROWS, columns), 0, layout=_LAYOUT)


def zeros(columns: int) -> jax.Array:
    """Zeros, float32."""
    return plgpu.layout_cast(jnp.zeros((ROWS, columns), jnp.float32), _LAYOUT)
