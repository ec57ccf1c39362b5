"""Products of many rows with weights in blocks of float8_e4m3fn, DeepSeek's format.

Tensor cores multiply codes by codes. Both operands have scales along the contraction, of a group of
128 inputs, so the sums of a group are scaled and added up in fp32 registers, as in DeepGEMM
(https://github.com/deepseek-ai/DeepGEMM): Hopper's own sums of float8 keep some 14 bits, and so
lose nothing that a group needs. One warpgroup scales while the other's products run, or while its
own of the next group do (`scaled_sums.py`).

* `project`: any number of projections of the same rows (q, k and v at once);
* `gated`: `silu(x gate^T) * (x up^T)`, half of a tile from each matrix.

Persistent blocks walk over tiles of 128 or 192 rows by 128 features, neighbours at the same time,
so that the L2 holds what they read. A producer warpgroup streams both operands through shared
memory (TMA), also of the next tile while this one's results are stored. Blocks of a cluster read
what they have in common once (multicast). With few rows and a long contraction two blocks share it:
each sends its sums of the features that the other one writes (`partial_sums.py`).

A row's sums don't depend on others, nor, from 257 rows on, on how many there are: each is added up
in the order of the contraction by one warpgroup.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.fp8 import FP8
from jaxinfer.kernels.matmul.mosaic import partial_sums
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantize_groups
from jaxinfer.kernels.matmul.mosaic.large_plan import (
    REGISTERS,
    ROWS,
    LargeConfig,
    LargePlan,
    choose,
)
from jaxinfer.kernels.matmul.mosaic.partial_sums import AXIS
from jaxinfer.kernels.matmul.mosaic.scaled_sums import Contraction, add_up
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP
from jaxinfer.kernels.mosaic.pages import Ref, Scalar, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import store_anyhow

_OF_ROWS = plgpu.Layout.WGMMA.reduce(1)


def supports(rows: int, dtype: jax.typing.DTypeLike, linears: Sequence[Any]) -> bool:
    """True if these projections of so many rows, which they all read, can be computed here."""
    shapes, forms = [linear.shape for linear in linears], {linear.form for linear in linears}
    known = len(forms) == 1 and jnp.dtype(dtype) == jnp.bfloat16
    if not known or choose(rows, shapes, forms.pop()) is None:
        return False
    blocks = [tuple(size // GROUP for size in shape) for shape in shapes]
    return [linear.scale.shape for linear in linears] == blocks


def project(
    x: Float[Array, "M I"],
    linears: Sequence[QuantizedLinear],
    *,
    config: LargeConfig | None = None,
) -> tuple[Float[Array, "M _"], ...]:
    """`x @ linear.T` for every projection, with inputs quantized by `quantize_groups`.

    Args:
        x: activations, bfloat16.
        linears: the projections, with blocks of 128 outputs by 128 inputs.

    Raises:
        ValueError: `supports` says no, or `config` does not fit a multiprocessor.
    """
    codes, scale = quantize_groups(x)
    return multiply(codes, scale, linears, x.dtype, config=config)


def gated(
    x: Float[Array, "M I"],
    gate: QuantizedLinear,
    up: QuantizedLinear,
    *,
    config: LargeConfig | None = None,
) -> Float[Array, "M F"]:
    """`silu(x @ gate.T) * (x @ up.T)`, rounded once; see `project` for the limits."""
    codes, scale = quantize_groups(x)
    return multiply(codes, scale, (gate, up), x.dtype, matrices=2, config=config)[0]


def multiply(
    codes: Float[Array, "M I"],
    scale: Float[Array, "G _"],
    linears: Sequence[QuantizedLinear],
    dtype: jax.typing.DTypeLike,
    *,
    matrices: int = 1,
    config: LargeConfig | None = None,
) -> tuple[Float[Array, "M _"], ...]:
    """`project` of inputs that are quantized already, in one launch.

    Args:
        codes: float8_e4m3fn.
        scale: float32, of each group of 128 inputs, for M rounded up to a multiple of 64.
        dtype: of the results: bfloat16 or float16.
        matrices: 2 for `gated`'s product, of a gate and an up projection.

    Raises:
        ValueError: as `project` does.
    """
    (M, size), shapes = codes.shape, [linear.shape for linear in linears]
    config = config or choose(M, shapes, linears[0].form)
    if config is None:
        raise ValueError(f"no configuration for {codes.shape} times {shapes}, {linears[0].form}")
    if scale.shape[1] != -(-M // ROWS) * ROWS:
        raise ValueError(f"{M} rows have scales for a multiple of {ROWS}, not {scale.shape}")
    outputs = tuple(features for features, _ in shapes[::matrices])
    p = LargePlan(M, size, outputs, matrices, jnp.dtype(dtype), config)
    p.check()
    weights = [each for linear in linears for each in (linear.weight, linear.scale)]
    return _launch(p)(codes, scale, *weights)


class _Stages(NamedTuple):
    """Pieces of the contraction in shared memory, and their barriers."""

    x: Ref  # [stages, rows, GROUP]
    w: Ref  # [stages, GROUP, GROUP], matrices one after the other
    filled: Any
    free: Any


class _Sharing(NamedTuple):
    """Barriers of blocks that share a contraction."""

    done: Any  # no block reads its stages any more
    arrived: Any  # the other block's sums


def _launch(p: LargePlan) -> Callable[..., tuple[jax.Array, ...]]:
    return plgpu.kernel(
        functools.partial(_block, p),
        out_type=tuple(jax.ShapeDtypeStruct((p.M, n), p.dtype) for n in p.outputs),
        grid=(p.clusters,),
        grid_names=("cluster",),
        cluster=tuple(p.cluster.values()),
        cluster_names=tuple(p.cluster),
        num_threads=p.config.consumers + 1,
        thread_name="warpgroup",
        scratch_types=_scratch(p),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        kernel_name="large_gated" if p.matrices == 2 else "large_project",
    )


def _scratch(p: LargePlan) -> dict[str, Any]:
    c, operand = p.config, swizzled(GROUP, FP8.itemsize)
    free = plgpu.Barrier(num_arrivals=c.consumers, num_barriers=c.stages)
    if p.readers:  # A slot is free when no block that it was filled for reads it.
        free = plgpu.ClusterBarrier(
            collective_axes=p.readers, num_arrivals=c.consumers, num_barriers=c.stages
        )
    x = plgpu.SMEM((c.stages, p.rows, GROUP), FP8, transforms=operand)
    out = plgpu.SMEM((c.consumers, ROWS, p.kept), p.dtype, transforms=swizzled(min(p.kept, 64)))
    memory, sharing = (x, out), None
    if c.splits > 1:  # What follows the only tile takes the place of its rows.
        part = partial_sums.memory(c.consumers, ROWS, p.kept)
        memory = plgpu.RefUnion(x, (part, out))
        sharing = _Sharing(
            done=plgpu.ClusterBarrier(collective_axes=(AXIS,), num_arrivals=c.consumers),
            arrived=plgpu.Barrier(num_barriers=c.consumers),
        )
    return {
        "memory": memory,
        "w": plgpu.SMEM((c.stages, GROUP, GROUP), FP8, transforms=operand),
        "filled": plgpu.Barrier(num_arrivals=1 + p.matrices, num_barriers=c.stages),
        "free": free,
        "sharing": sharing,
    }


def _block(p, x, scale, *refs, memory, w, filled, free, sharing):
    count = 2 * p.matrices * len(p.outputs)
    weights, scales, outputs = refs[:count:2], refs[1:count:2], refs[count:]
    consumer = lax.axis_index("warpgroup")
    ring_x, after = memory
    ring = _Stages(ring_x, w, filled, free)

    @pl.when(consumer == p.config.consumers)
    def _produce():
        plgpu.set_max_registers(REGISTERS[p.config.consumers][1], action="decrease")
        on_warps(lambda: _stream_weights(p, weights, ring), lambda: _stream_rows(p, x, ring))

    @pl.when(consumer < p.config.consumers)
    def _consume():
        plgpu.set_max_registers(REGISTERS[p.config.consumers][0], action="increase")
        o_smem = after if sharing is None else after[1]
        own = o_smem.at[consumer]

        def one(index, slot):
            row, tile = p.tile(index)
            # So many groups from here on, stages are filled again.
            left = (p.count - index) * p.steps - p.config.stages
            sums, slot = _multiply(p, left, slot, row, tile, consumer, scale, scales, ring)
            out = sums[0]
            if p.matrices == 2:
                out = out / (1.0 + jnp.exp(-out)) * sums[1]
            if sharing is not None:
                out = _shared(out, after[0].at[consumer], sharing, consumer)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            store_anyhow(own, out.astype(p.dtype))
            plgpu.commit_smem()

            def write(output, feature):
                rows, columns = pl.ds(row + consumer * ROWS, ROWS), p.columns(feature)
                plgpu.copy_smem_to_gmem(own, outputs[output].at[rows, columns])

            p.by_output(tile, write)
            return slot

        lax.fori_loop(0, p.count, one, jnp.int32(0))
        plgpu.wait_smem_to_gmem(0)


def _shared(sums, part, sharing, consumer):
    """The columns of the sums that this block keeps, over both blocks' parts."""
    plgpu.commit_smem()  # A single thread tells the other blocks.
    plgpu.barrier_arrive(sharing.done)
    plgpu.barrier_wait(sharing.done)
    return partial_sums.add_over_cluster(
        sums, part, sharing.arrived.at[consumer], plgpu.Layout.WGMMA
    )


def _stream(
    p: LargePlan, index: Scalar, ring: _Stages, copy: Callable[[Scalar, Any], None]
) -> None:
    """Producer warp: calls `copy(slot, columns)` for every group of a tile once a stage is free."""

    def one(group, _):
        step = index * p.steps + group
        slot = lax.rem(step, jnp.int32(p.config.stages))
        pl.when(step >= p.config.stages)(lambda: plgpu.barrier_wait(ring.free.at[slot]))
        copy(slot, pl.ds((p.start + group) * GROUP, GROUP))

    lax.fori_loop(0, p.steps, one, None)


def _stream_weights(p, weights, ring):
    def one(index, _):
        def stream(output, feature):
            def copy(slot, columns):
                for matrix in range(p.matrices):
                    source = weights[output * p.matrices + matrix]
                    plgpu.copy_gmem_to_smem(
                        source.at[pl.ds(feature, p.features), columns],
                        ring.w.at[slot, pl.ds(matrix * p.features, p.features)],
                        ring.filled.at[slot],
                        collective_axes="row" if "row" in p.cluster else None,
                    )

            _stream(p, index, ring, copy)

        p.by_output(p.tile(index)[1], stream)

    lax.fori_loop(0, p.count, one, None)


def _stream_rows(p, x, ring):
    def one(index, _):
        rows = pl.ds(p.tile(index)[0], p.rows)

        def copy(slot, columns):
            plgpu.copy_gmem_to_smem(
                x.at[rows, columns],
                ring.x.at[slot],
                ring.filled.at[slot],
                collective_axes="column" if "column" in p.cluster else None,
            )

        _stream(p, index, ring, copy)

    lax.fori_loop(0, p.count, one, None)


def _multiply(p, left, slot, row, tile, consumer, scale, scales, ring):
    """A consumer's sums ``[ROWS, features]`` of a tile by matrix, and the next one's first slot.

    Args:
        left: groups after which no stage is filled again.
        slot: of the first group.
    """
    # Rows beyond the last are multiplied, and never stored.
    rows = pl.ds(jnp.minimum(row + consumer * ROWS, scale.shape[1] - ROWS), ROWS)

    def of_group(step):
        group = p.start + step
        of_rows = plgpu.load(scale.at[group, rows], layout=_OF_ROWS, optimized=False)
        return of_rows, [_scale_of(p, scales, tile, group, m) for m in range(p.matrices)]

    def free(group, slot):
        # Only where a block waits for it: other blocks of the cluster may have ended.
        pl.when(group < left)(lambda: plgpu.barrier_arrive(ring.free.at[slot]))

    c, first = p.config, consumer * ROWS
    contraction = Contraction(
        p.steps, p.matrices, c.stages, ring.x, ring.w, ring.filled, first, of_group, free
    )
    return add_up(contraction, slot, in_turn=c.in_turn)


def _scale_of(p, scales, tile, group, matrix):
    """The scale of a tile's block of weights."""

    def of(output, first):
        ref = scales[output * p.matrices + matrix]
        block = jnp.minimum((tile - first) // p.matrices, p.outputs[output] // GROUP - 1)
        return lambda: plgpu.load(ref.at[block, group])

    output = sum(((tile >= first).astype(jnp.int32) for first in p.firsts[1:]), jnp.int32(0))
    return lax.switch(output, [of(*each) for each in enumerate(p.firsts)])
