"""Experts of up to 256 rows: gate, up and down in one launch, weights as the first operand.

What the two launches of `grouped.py` or of `grouped_codes.py` compute, where experts have few rows
each. Weights are the first operand of the products (in the field "swap AB"), 64 features a
warpgroup; an expert's rows are the columns, as many as there are, rounded up to 8. So tensor cores
multiply little in vain and need little power, and the L2 hands little out beside weights. A loop
for each number of columns is compiled, and chosen for each tile.

Blocks walk over the tiles of all experts, with 32 KB of weights a stage: first over those of gate
and up, of 128 features of each, then over those of down, of 256 features. Weights of down are asked
for while gate and up are still multiplied; rows wait for a count of the tiles that are written.

Every block runs at the same time, else a block that has not begun would be waited for in vain:
there are no more blocks than the device has multiprocessors, which `supports` looks at; each takes
most of a multiprocessor's shared memory, and launches before this one end by themselves. What may
run beside it must end without it, too. That holds for steps of few rows, beside which nothing runs
(two-batch overlap, where NCCL's kernels do, is for thousands of rows), and for a process that has
its GPU, or a part of it, to itself. Within a block nothing waits for what comes later: all of its
tiles of gate and up come before those of down, and these wait for no others.

A row's sums depend on no other row: each is added up in the order of the contraction.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.constants import MULTIPROCESSORS
from jaxinfer.kernels.experts.codes import QuantizedExperts
from jaxinfer.kernels.experts.groups import ALIGNMENT, Tiles
from jaxinfer.kernels.experts.mosaic.spread_codes import CodeRows
from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantized
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE
from jaxinfer.kernels.mosaic.counts import count, wait
from jaxinfer.kernels.mosaic.device import multiprocessors
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import row_layout, store_anyhow

ROWS = 32
"""Of a tile at most."""

_SHARED_BYTES = 224 * 1024  # of a block beside its barriers and what lies between its arrays
_CONSUMERS = 2
_BYTES = 128  # of the contraction, in a stage: the swizzle's width
_FEATURES = 2 * TILE  # of one matrix in a stage; two matrices, or two pieces of one
_MOST_STAGES = 8
_WGMMA = plgpu.Layout.WGMMA
_OF_COLUMNS = _WGMMA.reduce(0)

type Matrix = jax.Array | QuantizedExperts
type Rows = jax.Array | CodeRows


def supports(gate: Sequence[int]) -> bool:
    """Whether the kernel takes matrices of gate's shape on the device that it is traced for.

    Their dtypes are those that `grouped.supports` or `grouped_codes.supports` takes.
    """
    _, F, E = gate
    fits = F % _FEATURES == 0 and E % (2 * _FEATURES) == 0
    return fits and (multiprocessors() or 0) >= MULTIPROCESSORS


def gated_project(
    x: Rows,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    tiles: Tiles,
    counts: Int32[Array, "S 2"],
) -> Float[Array, "P E"]:
    """`(silu(x @ gate[e].T) * (x @ up[e].T)) @ down[e].T` in bfloat16, for the rows of every tile.

    What is gated is rounded to bfloat16, and of codes quantized. Other rows hold anything.

    Args:
        x: rows by expert, bfloat16 or codes; P a multiple of 8.
        gate: of each expert, in x's form; F a multiple of 128, E of 256.
        up: in gate's form.
        down: in gate's form.
        tiles: of at most `ROWS` rows each.
        counts: zeros, which nothing else reads: the kernel counts in them.
    """
    is_codes = isinstance(x, CodeRows)
    P, E = x.codes.shape if is_codes else x.shape
    p = _Problem(P, E, gate.shape[1], is_codes)
    arrays = [*x] if is_codes else [x]
    for each in (gate, up, down):
        arrays += [each.weight, each.scale] if isinstance(each, QuantizedExperts) else [each]
    return _launch(p)(*tiles, counts, *arrays)[-1]


@dataclasses.dataclass(frozen=True)
class _Phase:
    """Products of one kind.

    Attributes:
        size: of the contraction.
        outputs: features of a matrix.
        matrices: 2 for gate and up.
        chunk: of the contraction, in a stage.
    """

    size: int
    outputs: int
    matrices: int
    chunk: int

    @property
    def steps(self) -> int:
        """Stages of a tile."""
        return self.size // self.chunk

    @property
    def features(self) -> int:
        """Of a tile, of each matrix."""
        return 2 * _FEATURES // self.matrices

    @property
    def tiles(self) -> int:
        """Tiles along the features."""
        return self.outputs // self.features


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Everything static about one launch."""

    P: int
    E: int
    F: int
    is_codes: bool

    @property
    def dtype(self) -> Any:
        """Of both operands."""
        return jnp.dtype(FP8 if self.is_codes else jnp.bfloat16)

    @property
    def chunk(self) -> int:
        """Of the contraction, in a stage."""
        return _BYTES // self.dtype.itemsize

    @property
    def gated(self) -> _Phase:
        """Gate and up."""
        return _Phase(self.E, self.F, 2, self.chunk)

    @property
    def down(self) -> _Phase:
        """Down."""
        return _Phase(self.F, self.E, 1, self.chunk)

    @property
    def stages(self) -> int:
        """Chunks in flight."""
        stage = (2 * _FEATURES + ROWS) * _BYTES + (4 * ROWS if self.is_codes else 0)
        own = _CONSUMERS * ROWS * TILE * 2
        return min(_MOST_STAGES, (_SHARED_BYTES - own) // stage)

    @property
    def out(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What is gated, with scales if it is codes, and the result."""
        scale = (jax.ShapeDtypeStruct((self.F // GROUP, self.P), jnp.float32),)
        return (
            jax.ShapeDtypeStruct((self.P, self.F), self.dtype),
            *(scale if self.is_codes else ()),
            jax.ShapeDtypeStruct((self.P, self.E), jnp.bfloat16),
        )


class _Ring(NamedTuple):
    """Pieces of the contraction in shared memory, and their barriers."""

    w: Ref  # [stages, 2, _FEATURES, chunk]
    x: Ref  # [stages, ROWS, chunk]
    filled: Any
    free: Any
    scale: Ref | None  # [stages, ROWS], of codes


def _launch(p: _Problem) -> Callable[..., Any]:
    operand = swizzled(p.chunk, p.dtype.itemsize)
    ring = _Ring(
        w=plgpu.SMEM((p.stages, 2, _FEATURES, p.chunk), p.dtype, transforms=operand),
        x=plgpu.SMEM((p.stages, ROWS, p.chunk), p.dtype, transforms=operand),
        filled=plgpu.Barrier(num_arrivals=4 if p.is_codes else 3, num_barriers=p.stages),
        free=plgpu.Barrier(num_arrivals=_CONSUMERS, num_barriers=p.stages),
        scale=plgpu.SMEM((p.stages, ROWS), jnp.float32) if p.is_codes else None,
    )
    scratch: dict[str, Any] = {
        "ring": ring,
        "o_smem": plgpu.SMEM((_CONSUMERS, ROWS, TILE), jnp.bfloat16),
        "joined": plgpu.Barrier(num_arrivals=_CONSUMERS) if p.is_codes else None,
    }
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=p.out,
        grid=(MULTIPROCESSORS,),
        grid_names=("block",),
        num_threads=_CONSUMERS + 1,
        thread_name="warpgroup",
        scratch_types=scratch,
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        kernel_name="experts_codes_fused" if p.is_codes else "experts_fused",
    )


class _Operands(NamedTuple):
    """References of a phase.

    Attributes:
        x: rows, with their scales if they are codes.
        weights: matrices.
        scales: of each, if they are codes.
        out: what is written, with scales if it is codes.
    """

    x: Sequence[Ref]
    weights: Sequence[Ref]
    scales: Sequence[Ref]
    out: Sequence[Ref]


@dataclasses.dataclass(frozen=True)
class _Walk:
    """A block's tiles of one phase.

    Attributes:
        p: the launch.
        phase: the phase.
        tiles: references of a `Tiles`.
        refs: operands.
        first: number of the block's first tile.
        count: how many are the block's.
        base: stages that it went through before.
        counts: of tiles of gate and up that are written.
        free: barriers of the stages.
        unfilled: the step from which on no stage is filled again, of both phases.
    """

    p: _Problem
    phase: _Phase
    tiles: Tiles
    refs: _Operands
    first: Scalar
    count: Scalar
    base: Scalar
    counts: Ref
    free: Any
    unfilled: Scalar

    @property
    def is_gated(self) -> bool:
        """Of gate and up."""
        return self.phase.matrices == 2

    def release(self, step: Scalar) -> None:
        """Frees the stage of a step, if anyone waits for it."""
        slot = lax.rem(step, jnp.int32(self.p.stages))
        pl.when(step < self.unfilled)(lambda: plgpu.barrier_arrive(self.free.at[slot]))

    def each(self, do: Callable[[Scalar, Scalar, Scalar, Scalar], None]) -> None:
        """Calls `do(step, tile of rows, feature, rows)` for one after the other."""
        wide = jnp.int32(self.phase.tiles)

        def one(index: Scalar, _: None) -> None:
            number = self.first + index * MULTIPROCESSORS
            tile, column = lax.div(number, wide), lax.rem(number, wide)
            rows = (self.tiles.ends[tile] - self.tiles.firsts[tile]) * ALIGNMENT
            step = self.base + index * self.phase.steps
            do(step, tile, column * self.phase.features, rows)

        lax.fori_loop(0, self.count, one, None)

    def by_chunk(self, first: Scalar, do: Callable[[Scalar, Scalar], None]) -> None:
        """Calls `do(slot, chunk)` for every stage of a tile, once it is free."""
        stages = jnp.int32(self.p.stages)

        def one(chunk: Scalar, _: None) -> None:
            step = first + chunk
            slot = lax.rem(step, stages)
            pl.when(step >= stages)(lambda: plgpu.barrier_wait(self.free.at[slot]))
            do(slot, chunk)

        lax.fori_loop(0, self.phase.steps, one, None)


def _by_width(rows: Scalar, do: Callable[[int], None]) -> None:
    """Calls `do` with the number of rows, for which each has its own code."""
    for width in range(ALIGNMENT, ROWS + 1, ALIGNMENT):
        pl.when(rows == width)(functools.partial(do, width))


def _block(p: _Problem, total, experts, firsts, ends, counts, *refs, ring, o_smem, joined):
    tiles = Tiles(total, experts, firsts, ends)
    walks = _walks(p, tiles, counts, refs, ring.free)
    consumer = lax.axis_index("warpgroup")

    @pl.when(consumer == _CONSUMERS)
    def _produce():
        def stream(one: Callable[[_Walk, _Ring], None]) -> None:
            for walk in walks:
                one(walk, ring)

        on_warps(lambda: stream(_stream_weights), lambda: stream(_stream_rows))

    @pl.when(consumer < _CONSUMERS)
    def _consume():
        for walk in walks:
            walk.each(functools.partial(_compute, walk, ring, consumer, o_smem, joined))
        plgpu.wait_smem_to_gmem(0)


def _walks(
    p: _Problem, tiles: Tiles, counts: Ref, refs: Sequence[Ref], free: Any
) -> tuple[_Walk, _Walk]:
    """Tiles of gate and up, and behind them those of down, all of them dealt to blocks in turn."""
    n = 2 if p.is_codes else 1
    x, gate, up, down, inner = (refs[n * i : n * (i + 1)] for i in range(5))
    block = lax.axis_index("block")

    def own(number: Scalar) -> Scalar:  # Of so many tiles.
        left = jnp.maximum(number - block + (MULTIPROCESSORS - 1), 0)
        return lax.div(left, jnp.int32(MULTIPROCESSORS))

    before = tiles.total[0] * p.gated.tiles
    of_gated = own(before)
    of_down = own(before + tiles.total[0] * p.down.tiles) - of_gated
    base = of_gated * p.gated.steps
    make = functools.partial(
        _Walk,
        p=p,
        tiles=tiles,
        counts=counts,
        free=free,
        unfilled=base + of_down * p.down.steps - p.stages,
    )
    return (
        make(
            phase=p.gated,
            refs=_Operands(x, (gate[0], up[0]), (*gate[1:], *up[1:]), inner),
            first=block,
            count=of_gated,
            base=jnp.int32(0),
        ),
        make(
            phase=p.down,
            refs=_Operands(inner, down[:1], down[1:], refs[5 * n :]),
            first=block + of_gated * MULTIPROCESSORS - before,
            count=of_down,
            base=base,
        ),
    )


def _stream_weights(walk: _Walk, ring: _Ring) -> None:
    chunk = walk.p.chunk

    def tile(step, tile, feature, rows):
        del rows
        expert = walk.tiles.experts[tile]

        def copy(slot, number):
            columns = pl.ds(number * chunk, chunk)
            for part in range(2):
                # Half of a stage is of a matrix, or all is of one.
                matrix, first = (
                    (part, feature) if walk.is_gated else (0, feature + part * _FEATURES)
                )
                plgpu.copy_gmem_to_smem(
                    walk.refs.weights[matrix].at[expert, pl.ds(first, _FEATURES), columns],
                    ring.w.at[slot, part],
                    ring.filled.at[slot],
                )

        walk.by_chunk(step, copy)

    walk.each(tile)


def _stream_rows(walk: _Walk, ring: _Ring) -> None:
    p, chunk = walk.p, walk.p.chunk

    def tile(step, tile, feature, rows):
        del feature
        if not walk.is_gated:
            wait(walk.counts, tile, ready=_CONSUMERS * p.gated.tiles)
        first = walk.tiles.firsts[tile] * ALIGNMENT

        def stream(width):
            places, own = pl.ds(first, width), pl.ds(0, width)

            def copy(slot, number):
                filled = ring.filled.at[slot]
                source = walk.refs.x[0].at[places, pl.ds(number * chunk, chunk)]
                plgpu.copy_gmem_to_smem(source, ring.x.at[slot, own], filled)
                if ring.scale is not None:
                    source = walk.refs.x[1].at[number, places]
                    plgpu.copy_gmem_to_smem(source, ring.scale.at[slot, own], filled)

            walk.by_chunk(step, copy)

        _by_width(rows, stream)

    walk.each(tile)


def _compute(walk, ring, consumer, o_smem, joined, step, tile, feature, rows):
    """One tile of a consumer, 64 features of each half of a stage."""
    p, own = walk.p, o_smem.at[consumer]
    first = walk.tiles.firsts[tile] * ALIGNMENT

    def do(width):
        multiply = _multiply_codes if p.is_codes else _multiply
        sums = multiply(walk, ring, consumer, step, tile, feature, width)
        places = pl.ds(first, width)
        if not walk.is_gated:
            for part, values in enumerate(sums):
                columns = pl.ds(feature + part * _FEATURES + consumer * TILE, TILE)
                _write(own, values, walk.refs.out[0].at[places, columns])
            return
        gate, up = sums
        values = gate / (1.0 + jnp.exp(-gate)) * up
        if p.is_codes:
            _write_codes(o_smem, joined, consumer, values, walk.refs.out, first, feature)
        else:
            columns = pl.ds(feature + consumer * TILE, TILE)
            _write(own, values, walk.refs.out[0].at[places, columns])

    _by_width(rows, do)
    if walk.is_gated:
        if not p.is_codes:
            plgpu.wait_smem_to_gmem(0)
        count(walk.counts, tile)


def _keep(own: Ref, values: jax.Array) -> Ref:
    """Sums ``[TILE, N]`` as rows in shared memory."""
    kept = own.at[pl.ds(0, values.shape[1])]
    store_anyhow(kept.transpose((1, 0)), values.astype(jnp.bfloat16))
    plgpu.commit_smem()
    return kept


def _write(own: Ref, values: jax.Array, target: Ref) -> None:
    plgpu.wait_smem_to_gmem(0, wait_read_only=True)
    plgpu.copy_smem_to_gmem(_keep(own, values), target)


def _write_codes(o_smem, joined, consumer, values, out, first, feature):
    """Codes of a group of features, of which each consumer has computed a half."""
    codes, scales = out
    _keep(o_smem.at[consumer], values)
    _join(joined)
    for number, row in enumerate(range(0, values.shape[1], ALIGNMENT)):

        @pl.when(consumer == number % _CONSUMERS)
        def _write_some(row=row):
            own, places = pl.ds(row, ALIGNMENT), pl.ds(first + row, ALIGNMENT)
            layout = row_layout(ALIGNMENT, TILE)
            halves = [
                plgpu.load(o_smem.at[half, own], layout=layout, optimized=False)
                for half in range(_CONSUMERS)
            ]
            narrow, scale = quantized(*[half.astype(jnp.float32) for half in halves])
            for half, part in enumerate(narrow):
                store_anyhow(codes.at[places, pl.ds(feature + half * TILE, TILE)], part)
            store_anyhow(scales.at[feature // GROUP, places], scale)

    _join(joined)  # All have read it before it is written again.


def _join(joined: Any) -> None:
    plgpu.barrier_arrive(joined)
    plgpu.barrier_wait(joined)


def _multiply(walk, ring, consumer, step, tile, feature, width) -> list[jax.Array]:
    """A consumer's two sums ``[TILE, width]`` of a tile."""
    del tile, feature
    stages, steps = jnp.int32(walk.p.stages), walk.phase.steps
    own, columns = pl.ds(consumer * TILE, TILE), pl.ds(0, width)

    def products(*sums):
        def one(chunk, _):
            slot = lax.rem(step + chunk, stages)
            plgpu.barrier_wait(ring.filled.at[slot])
            operand = ring.x.at[slot, columns].transpose((1, 0))
            for part, total in enumerate(sums):
                plgpu.wgmma(total, ring.w.at[slot, part, own], operand)
            plgpu.wgmma_wait(2)  # The last chunk's products are done.
            pl.when(chunk > 0)(lambda: walk.release(step + chunk - 1))

        lax.fori_loop(0, steps, one, None)
        plgpu.wgmma_wait(0)
        walk.release(step + (steps - 1))
        return [total[...] for total in sums]

    return pl.run_scoped(products, *[plgpu.ACC((TILE, width), jnp.float32)] * 2)


def _multiply_codes(walk, ring, consumer, step, tile, feature, width) -> list[jax.Array]:
    """The same of codes, whose sums are scaled by group, as in `grouped_codes.py`."""
    stages, steps = jnp.int32(walk.p.stages), walk.phase.steps
    own, columns = pl.ds(consumer * TILE, TILE), pl.ds(0, width)
    expert, block = walk.tiles.experts[tile], feature // GROUP
    scales = walk.refs.scales
    of_parts = [(scales[0], block), (scales[-1], block + int(not walk.is_gated))]

    def ask(chunk):
        chunk = jnp.minimum(chunk, steps - 1)
        return [plgpu.load(each.at[expert, number, chunk]) for each, number in of_parts]

    def one(chunk, carry):
        sums, asked = carry
        following = ask(chunk + 1)
        slot = lax.rem(step + chunk, stages)
        plgpu.barrier_wait(ring.filled.at[slot])
        of_rows = plgpu.load(ring.scale.at[slot, columns], layout=_OF_COLUMNS, optimized=False)

        def products(*totals):
            operand = ring.x.at[slot, columns].transpose((1, 0))
            for part, total in enumerate(totals):
                plgpu.wgmma(total, ring.w.at[slot, part, own], operand)
            return [total[...] for total in totals]

        parts = pl.run_scoped(products, *[plgpu.ACC((TILE, width), jnp.float32)] * 2)
        walk.release(step + chunk)
        sums = [
            total + part * lax.broadcast_in_dim(of_rows * of_block, part.shape, [1])
            for total, part, of_block in zip(sums, parts, asked, strict=True)
        ]
        return sums, following

    zeros = plgpu.layout_cast(jnp.zeros((TILE, width), jnp.float32), _WGMMA)
    sums, _ = lax.fori_loop(0, steps, one, ([zeros] * 2, ask(0)))
    return sums
