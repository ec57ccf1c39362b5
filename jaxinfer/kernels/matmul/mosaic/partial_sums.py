"""Adds up the sums of a tile over two warpgroups that have a part of the contraction each.

They are of one block, or of two blocks of a cluster. Two numbers have one sum in either order, so
that results are the same in every run.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic.pages import Ref, RegisterLayout, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

AXIS = "split"
"""Of a cluster, along which two blocks share the contraction."""


def memory(*shape: int) -> Any:
    """Shared memory ``[..., rows, columns]`` for sums, columns being a multiple of 8."""
    columns = next(n for n in (32, 16, 8) if shape[-1] % n == 0)
    return plgpu.SMEM(shape, jnp.float32, transforms=swizzled(columns, 4))


def send(sums: jax.Array, received: Ref, arrived: Any) -> None:
    """Hand a warpgroup's sums to the other one of its block, which adds both.

    Args:
        sums: ``[rows, columns]`` in registers.
        received: `memory` of that shape, which no warpgroup of the block uses otherwise any more.
        arrived: a barrier of one arrival.
    """
    store_anyhow(received, sums)
    plgpu.barrier_arrive(arrived)


def add_sent(sums: jax.Array, received: Ref, arrived: Any, layout: RegisterLayout) -> jax.Array:
    """A warpgroup's sums ``[rows, columns]`` and those that the other one has sent.

    Args:
        sums: of this warpgroup's part, in registers.
        received: see `send`.
        arrived: see `send`.
        layout: of `sums`.
    """
    plgpu.barrier_wait(arrived)
    return sums + plgpu.load(received, layout=layout, optimized=False)


def add_over_cluster(
    sums: jax.Array, received: Ref, arrived: Any, layout: RegisterLayout
) -> jax.Array:
    """A warpgroup's sums ``[rows, columns / 2]`` over both blocks, of the columns its block keeps.

    Through distributed shared memory, each block sends the columns that the other one keeps.

    Args:
        sums: ``[rows, columns]`` of this block's half, in registers.
        received: `memory` ``[rows, columns / 2]``, which neither block uses otherwise any more.
        arrived: a barrier of one arrival.
        layout: of `sums`.
    """
    kept, own = received.shape[1], lax.axis_index(AXIS)
    halves = sums[:, :kept], sums[:, kept:]

    def exchange(mine: int) -> jax.Array:
        plgpu.async_store_smem(
            halves[1 - mine],
            received,
            arrived,
            cluster_idx=jnp.int32(1 - mine),
            cluster_dim=AXIS,
            optimized=False,
        )
        return halves[mine]

    kept_sums = lax.cond(own == 0, lambda: exchange(0), lambda: exchange(1))
    plgpu.barrier_wait(arrived)
    return kept_sums + plgpu.load(received, layout=layout, optimized=False)
