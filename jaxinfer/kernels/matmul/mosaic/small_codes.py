"""A small product's weights as codes, multiplied by several warpgroups of a block.

Tensor cores multiply float8_e4m3fn where activations are quantized, too. Other codes are widened in
registers, which takes one warpgroup longer than the memory takes to send them. So several share a
block's slice of the contraction, each with stages and activations of its own; the first one adds
their sums up. Scales are for sums: of a group of inputs, or of all. `nibbles.py` widens and
multiplies integers of four bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, override

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxinfer.kernels.fp8 import FP8, LARGEST, STEPS
from jaxinfer.kernels.matmul.mosaic import nibbles
from jaxinfer.kernels.matmul.mosaic.small_activations import memory_of_rows
from jaxinfer.kernels.matmul.mosaic.small_block import Ring, add_parts, by_output
from jaxinfer.kernels.matmul.mosaic.small_codes_plan import CodesPlan
from jaxinfer.kernels.matmul.mosaic.widened import of_features, store_scales, widened
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow


def quantized_group(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Float8_e4m3fn ``[N, GROUP]`` and scales ``[N]`` of a group of inputs, in float32."""
    largest = jnp.maximum(values, -values).max(axis=1)
    scale = jnp.where(largest > 0, largest * STEPS, 1.0)
    spread = lax.broadcast_in_dim(scale, values.shape, [0])
    return jnp.clip(values / spread, -LARGEST, LARGEST).astype(FP8), scale


def memory_of_codes(p: CodesPlan, dtype: jax.typing.DTypeLike) -> dict[str, Any]:
    """Shared memory that takes the place of that of plain weights, and more.

    Args:
        dtype: of the activations.
    """
    names = ("scale", "zero") if p.form.has_zeros else ("scale",)
    scales = plgpu.SMEM((p.consumers, p.matrices, p.scales, TILE), jnp.float32)
    codes: dict[str, Any] = {"scales": dict.fromkeys(names, scales)}
    if p.consumers > 1:
        parts = (p.matrices + p.normed, p.consumers - 1)
        codes["shared"] = plgpu.SMEM((*parts, TILE, p.columns), jnp.float32)
        codes["joined"] = plgpu.Barrier(num_arrivals=p.consumers - 1)
    width = p.width(p.chunk)
    tiles = (p.consumers * p.stages, p.matrices, TILE, width)
    layout = swizzled(min(width, 128), p.form.dtype.itemsize)
    quantizes = p.form.multiplies_codes
    memory = memory_of_rows(p, FP8 if quantizes else dtype, are_scaled=quantizes)
    if quantizes:
        kept = (p.consumers * p.kept_chunks, p.columns)
        memory["x_smem"] = plgpu.SMEM((*kept, p.chunk), FP8, transforms=layout)
        codes["inputs"] = plgpu.SMEM(kept, jnp.float32)
    w_smem = plgpu.SMEM(tiles, p.form.dtype, transforms=layout)
    return memory | {"w_smem": w_smem, "codes": codes}


def ring_of_codes(
    p: CodesPlan,
    memory: Sequence[Any],
    codes: dict[str, Any],
    split: Scalar,
    consumer: Scalar | int,
) -> CodesRing:
    """One warpgroup's part of memory that several have: of a `Ring`, and of `memory_of_codes`."""
    tiles, x, filled, free, squares, alone = memory
    scales = {name: ref.at[consumer] for name, ref in codes["scales"].items()}
    return CodesRing(p, tiles, x, filled, free, squares, alone, scales, codes, split, consumer)


@dataclasses.dataclass(frozen=True)
class CodesRing(Ring):
    """The ring of one of several warpgroups.

    Attributes:
        scales: of the slice, ``[matrices, groups, TILE]``; their zero points, too.
        codes: as of `memory_of_codes`.
        split: number of the block in its cluster.
        consumer: number of the warpgroup, whose stages and chunks follow others'.
    """

    plan: CodesPlan
    scales: dict[str, Ref]
    codes: dict[str, Any]
    split: Scalar
    consumer: Scalar | int

    @override
    def start(self, first: Scalar, size: int) -> Scalar:
        return (self.split * self.plan.consumers + self.consumer) * size

    @override
    def stage(self, chunk: Scalar | int) -> Scalar | int:
        return self.consumer * self.plan.stages + super().stage(chunk)

    @override
    def chunk(self, index: Scalar | int) -> Scalar | int:
        kept = self.plan.kept_chunks
        return self.consumer * kept + lax.rem(index, kept)

    @override
    def elements(self, weight: Any) -> Ref:
        return weight.weight

    @override
    def request_scales(self, weights: Sequence[Any], tile: Scalar, start: Scalar) -> None:
        def request(output: int, feature: Scalar) -> None:
            codes = weights[output : output + self.plan.matrices]
            store_scales(codes, feature, start // GROUP, self.scales)

        by_output(self.plan, tile, request)

    @override
    def operand(self, chunk: Scalar | int, matrix: int) -> Any:
        """Codes, or their values in registers."""
        if self.plan.form.multiplies_codes:
            return self.tile(chunk, matrix)
        plgpu.wgmma_wait(0)  # Lets a tile have the last one's registers.
        return widened(self.tile(chunk, matrix))

    @override
    def products(self, chunks: Sequence[Scalar | int]) -> list[jax.Array]:
        if not self.plan.form.has_nibbles:
            return super().products(chunks)
        [chunk], matrices = chunks, range(self.plan.matrices)
        self.await_tiles(chunk)
        tiles = [self.tile(chunk, matrix) for matrix in matrices]
        zeros = [
            self.scales["zero"].at[matrix, chunk] for matrix in matrices if self.plan.form.has_zeros
        ]
        return nibbles.multiplied(tiles, self.x.at[self.chunk(chunk)], zeros)

    @override
    def as_operand(self, values: jax.Array) -> tuple[jax.Array, ...]:
        """Groups of inputs: as they are, or in float8_e4m3fn with a scale for each, by the form.

        A row's scale takes part in all of its values: that the norm divides later changes no code.
        """
        if self.plan.form.multiplies_codes:
            return quantized_group(values)
        return super().as_operand(values)

    @override
    def keep(self, chunk: Scalar | int, operand: jax.Array, *scale: jax.Array) -> None:
        """A group of inputs, and their scales ``[N]``; inputs of integers of four bits in pairs."""
        if self.plan.form.has_nibbles:
            operand = nibbles.paired(operand)
        super().keep(chunk, operand)
        for values in scale:
            store_anyhow(self.codes["inputs"].at[self.chunk(chunk)], values)

    @override
    def scaled(self, products: list[jax.Array], chunks: Sequence[Scalar | int]) -> list[jax.Array]:
        """By the scales of a group, which is one chunk."""
        if not self.plan.form.is_grouped:
            return products
        [chunk] = chunks
        products = [self._times(values, m, chunk) for m, values in enumerate(products)]
        if not self.plan.form.multiplies_codes:
            return products
        inputs = self.codes["inputs"].at[self.chunk(chunk)]
        scale = plgpu.load(inputs, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
        return [values * lax.broadcast_in_dim(scale, values.shape, [1]) for values in products]

    @override
    def total(self, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """By the scales that all inputs share."""
        if self.plan.form.is_grouped:
            return sums
        return tuple(self._times(values, m, 0) for m, values in enumerate(sums))

    def _times(self, sums: jax.Array, matrix: int, index: Scalar | int) -> jax.Array:
        return sums * of_features(self.scales["scale"].at[matrix, index], self.plan.columns)

    @override
    def sum_over_block(
        self, sums: Sequence[jax.Array], go_on: Callable[[Sequence[jax.Array]], None]
    ) -> None:
        """Calls `go_on` on the first warpgroup alone."""
        others = self.plan.consumers - 1
        if not others:
            go_on(sums)
            return
        shared, joined = self.codes["shared"], self.codes["joined"]

        @pl.when(self.consumer > 0)
        def _send():
            for matrix, values in enumerate(sums):
                store_anyhow(shared.at[matrix, self.consumer - 1], values)
            plgpu.commit_smem()
            plgpu.barrier_arrive(joined)

        @pl.when(self.consumer == 0)
        def _gather():
            plgpu.barrier_wait(joined)
            go_on([add_parts(others, own, shared.at[m]) for m, own in enumerate(sums)])
