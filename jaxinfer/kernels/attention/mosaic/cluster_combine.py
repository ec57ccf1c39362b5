"""Weighs the splits of decode attention together within a thread-block cluster.

What `combine.py` does in a second launch, for splits that are blocks of one cluster: they send what
they have to the first one's shared memory. With few sequences and short contexts the launch would
take a third as long as attention itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.mosaic.pages import Ref

_MOST_SPLITS = 8  # blocks, the largest portable cluster
_SHARED_BYTES = 210 * 1024  # of a multiprocessor's, without what a block has besides its stages
_STAGE_BYTES = 32 * 1024  # of the decode kernel with tiles of 64 keys


def most_splits(head_bytes: int, stages: int) -> int:
    """Splits that can be combined, by the bytes of a split's output and the number of stages."""
    return min(_MOST_SPLITS, 1 + (_SHARED_BYTES - stages * _STAGE_BYTES) // (2 * head_bytes))


def scratch(num_splits: int, D: int, N: int) -> dict[str, Any]:
    """What a block needs to gather the others' ``[D, N]`` and ``[N]``."""
    others = num_splits - 1
    return {
        "partial": plgpu.SMEM((others, D, N), jnp.float32),
        # As many equal rows, which need not be spread when they are read.
        "log_sums": plgpu.SMEM((others, D, N), jnp.float32),
        "gathered": plgpu.Barrier(num_arrivals=2 * others),
    }


def combine_in_cluster(
    out: jax.Array,
    log_sum: jax.Array,
    finish: Callable[[jax.Array], None],
    *,
    partial: Ref,
    log_sums: Ref,
    gathered: Ref,
) -> None:
    """Calls `finish` with the whole result, on the first block of the cluster axis "split".

    Args:
        out: this split's normalised output ``[D, N]``.
        log_sum: base-2 logarithms of its sums ``[N]``; -inf where it saw no key.
        finish: is given ``[D, N]``; zeros where no split saw a key.
        partial: of `scratch`, as are the rest.
        log_sums: likewise.
        gathered: likewise.
    """
    split = lax.axis_index("split")
    log_sum = lax.broadcast_in_dim(log_sum, out.shape, [1])

    @pl.when(split > 0)
    def _send() -> None:
        for values, place in ((out, partial), (log_sum, log_sums)):
            plgpu.async_store_smem(
                values,
                place.at[split - 1],
                gathered,
                cluster_idx=jnp.int32(0),
                cluster_dim="split",
                optimized=False,
            )

    @pl.when(split == 0)
    def _gather() -> None:
        plgpu.barrier_wait(gathered)
        others = range(partial.shape[0])
        # The lower bound keeps (-inf) - (-inf) away when no split saw a key.
        largest = jnp.maximum(log_sum, -1e30)
        for i in others:
            largest = jnp.maximum(largest, _load(log_sums.at[i]))
        total = jnp.exp2(log_sum - largest)
        mixed = out * total
        for i in others:
            weight = jnp.exp2(_load(log_sums.at[i]) - largest)
            total = total + weight
            mixed = mixed + _load(partial.at[i]) * weight
        finish(mixed / jnp.maximum(total, 1e-30))


def _load(ref: Ref) -> jax.Array:
    return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)
