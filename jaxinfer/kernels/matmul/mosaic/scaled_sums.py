"""Adds up products of codes group by group, each times the scales of its rows and of its weights.

Rows have a scale for every 128 inputs, weights one for a block of 128 features by 128 inputs.
Scales are loaded from device memory a group ahead: in shared memory they would be written by the
copy engine and read by threads, which have to tell each other when they have done so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.matmul.mosaic.large_plan import ROWS
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic import in_flight
from jaxinfer.kernels.mosaic.pages import Ref, Scalar

_WGMMA = plgpu.Layout.WGMMA

type Scales = tuple[jax.Array, list[jax.Array]]
"""Of a group: ``[ROWS]`` of the rows, and a number for each matrix."""


@dataclasses.dataclass(frozen=True)
class Contraction:
    """What a consumer warpgroup multiplies for a tile: its rows by features of one or two matrices.

    Attributes:
        groups: of the contraction.
        matrices: whose features lie side by side in a stage.
        stages: how many there are, which groups take in turn.
        x: ``[stages, rows, GROUP]`` in shared memory.
        w: ``[stages, GROUP, GROUP]`` in shared memory.
        filled: a barrier for each stage.
        first: of the stages' rows, the consumer's first.
        scales: loads those of a group.
        free: tells that a group's stage, its second argument, is not read any more.
    """

    groups: int
    matrices: int
    stages: int
    x: Ref
    w: Ref
    filled: Any
    first: Scalar
    scales: Callable[[Scalar], Scales]
    free: Callable[[Scalar, Scalar], None]

    def operands(self, slot: Scalar) -> tuple[Ref, Ref]:
        """Of a stage, once it is filled."""
        plgpu.barrier_wait(self.filled.at[slot])
        return self.x.at[slot, pl.ds(self.first, ROWS)], self.w.at[slot]

    def ask(self, group: Scalar) -> Scales:
        """Scales of a group, or of the last one."""
        return self.scales(jnp.minimum(group, self.groups - 1))

    def after(self, slot: Scalar) -> Scalar:
        """The stage of the next group."""
        return jnp.where(slot == self.stages - 1, 0, slot + 1)


def add_up(c: Contraction, slot: Scalar, *, in_turn: bool) -> tuple[list[jax.Array], Scalar]:
    """A tile's sums ``[ROWS, features]`` by matrix, and the stage behind its last group's.

    Args:
        c: what is multiplied.
        slot: the first group's stage.
        in_turn: whether two accumulators take groups in turn, and products of the one run while
            sums of the other are scaled; else the other consumers' products do. Results are equal.
    """
    zeros = jnp.zeros((ROWS, GROUP // c.matrices), jnp.float32)
    carry = [plgpu.layout_cast(zeros, _WGMMA)] * c.matrices, slot, c.ask(jnp.int32(0))
    if in_turn:
        carry = lax.fori_loop(0, c.groups // 2, lambda pair, carry: _two(c, 2 * pair, carry), carry)
        if c.groups % 2:
            carry = _one(c, jnp.int32(c.groups - 1), carry)
    else:
        carry = lax.fori_loop(0, c.groups, lambda group, carry: _one(c, group, carry), carry)
    return carry[0], carry[1]


def _one(c, group, carry):
    """Multiplies a group and adds its sums."""
    sums, slot, scales = carry
    following = c.ask(group + 1)
    x, w = c.operands(slot)

    def products(accumulator):
        plgpu.wgmma(accumulator, x, w.transpose((1, 0)))
        return accumulator[...]

    more = pl.run_scoped(products, plgpu.ACC((ROWS, GROUP), jnp.float32))
    c.free(group, slot)
    return _add(sums, more, scales), c.after(slot), following


def _two(c, group, carry):
    """A group and the next one, whose products run while the sums of the first are added."""
    sums, slot, scales = carry
    later = c.after(slot)
    first = in_flight.start(*c.operands(slot))
    following = c.ask(group + 1)
    second = in_flight.start(*c.operands(later))
    more = in_flight.landed(first, 1)
    c.free(group, slot)
    sums = _add(sums, more, scales)
    scales = c.ask(group + 2)
    more = in_flight.landed(second, 0)
    c.free(group + 1, later)
    return _add(sums, more, following), c.after(later), scales


def _add(sums, more, scales):
    """Sums of each matrix and those of a group, scaled."""
    of_rows, of_blocks = scales
    n = GROUP // len(sums)
    parts = [more[:, m * n : (m + 1) * n] for m in range(len(sums))]
    return [
        total + part * lax.broadcast_in_dim(of_rows * of_block, part.shape, [0])
        for total, part, of_block in zip(sums, parts, of_blocks, strict=True)
    ]
