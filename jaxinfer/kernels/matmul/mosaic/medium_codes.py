"""Products of 17 to 256 rows with several weights of 8 or 4 bits in one launch.

What `medium.py` does for weights in bfloat16, with half or a quarter of their bytes:

* `project`: any number of projections of the same rows (q, k and v at once);
* `gated`: `silu(x gate^T) * (x up^T)`.

Where activations are quantized, too, tensor cores multiply codes. Otherwise they multiply bfloat16,
to which codes are widened in registers. 64 output features are a product's rows, the batch its
columns. Sums, in float32, are scaled at the end, or once for every 128 inputs where those have a
scale of their own.

A block computes `rows` rows of the batch for up to three tiles of 64 features, each of a consumer
warpgroup, or for one of two consumers, which take pieces of the contraction in turn. A producer
warpgroup streams codes and rows through shared memory (TMA). Of gate and up a tile has 32 features
each. Blocks of a cluster have different rows and read codes once for all; or they share the
contraction: each of two sends the sums of the rows that the other one writes (`partial_sums.py`).

Which products pay, and with which sizes, is in `medium_codes_plan.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from jaxinfer.kernels.matmul.mosaic import partial_sums
from jaxinfer.kernels.matmul.mosaic.large_inputs import quantize_groups
from jaxinfer.kernels.matmul.mosaic.medium_codes_plan import (
    MediumCodesConfig,
    MediumCodesPlan,
    choose,
)
from jaxinfer.kernels.matmul.mosaic.partial_sums import AXIS
from jaxinfer.kernels.matmul.mosaic.tile_values import HALF, OPERAND, values_of_tile
from jaxinfer.kernels.matmul.mosaic.widened import widened
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE
from jaxinfer.kernels.mosaic.pages import SWIZZLED, on_warps, swizzled
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_COLUMN = OPERAND.reduce(0)
# Of a thread, where two consumers have sums of many rows.
_CONSUMER_REGISTERS, _PRODUCER_REGISTERS = 232, 40


def supports(rows: int, dtype: jax.typing.DTypeLike, weights: Sequence[Any]) -> bool:
    """True if these projections of a number of rows, which they all read, can be computed here.

    Where two can, so they can as gate and up.
    """
    form, *others = {weight.form for weight in weights}
    shapes = [weight.shape for weight in weights]
    return not others and choose(rows, shapes, dtype, form) is not None


def project(
    x: Float[Array, "B I"],
    weights: Sequence[QuantizedLinear],
    *,
    config: MediumCodesConfig | None = None,
) -> tuple[Float[Array, "B _"], ...]:
    """`x @ weight.T` for every weight, in one launch.

    Args:
        x: activations, bfloat16; quantized here where the weights' form says so.
        weights: of `[O, I]` each, all of one form.

    Raises:
        ValueError: `choose` has no configuration for these shapes, or `config` does not fit them.
    """
    return _run(x, tuple(weights), 1, config)


def gated(
    x: Float[Array, "B I"],
    gate: QuantizedLinear,
    up: QuantizedLinear,
    *,
    config: MediumCodesConfig | None = None,
) -> Float[Array, "B F"]:
    """`silu(x @ gate.T) * (x @ up.T)`, rounded once; see `project` for the limits."""
    return _run(x, (gate, up), 2, config)[0]


def multiply(
    codes: Float[Array, "B I"],
    scale: Float[Array, "G _"],
    weights: Sequence[QuantizedLinear],
    dtype: jax.typing.DTypeLike,
    *,
    matrices: int = 1,
    config: MediumCodesConfig | None = None,
) -> tuple[Float[Array, "B _"], ...]:
    """`project` of inputs that are quantized already, in one launch.

    Args:
        codes: float8_e4m3fn, of a multiple of 8 rows.
        scale: float32, as of `quantize_groups`.
        weights: of one form, whose codes are multiplied by codes.
        dtype: of the results, bfloat16.
        matrices: 2 for `gated`'s product, of a gate and an up projection.

    Raises:
        ValueError: as `project` does.
    """
    p = _plan(codes, weights, dtype, matrices, config)
    padding = (0, max(0, p.row_blocks * p.config.rows - scale.shape[1]))
    return _launch(p, codes, (jnp.pad(scale, ((0, 0), padding)),), weights, dtype)


def _run(x, weights, matrices, config):
    given = x.shape[0]
    x = jnp.pad(x, ((0, -given % 8), (0, 0)))  # The copy engine takes 8 rows at once.
    if weights[0].form.multiplies_codes:
        codes, scale = quantize_groups(x)
        products = multiply(codes, scale, weights, x.dtype, matrices=matrices, config=config)
    else:
        products = _launch(_plan(x, weights, x.dtype, matrices, config), x, (), weights, x.dtype)
    return tuple(product[:given] for product in products)


def _plan(rows, weights, dtype, matrices, config):
    (B, size), form = rows.shape, weights[0].form
    shapes = [weight.shape for weight in weights]
    config = config or choose(B, shapes, dtype, form, matrices=matrices)
    if config is None or any(weight.form != form for weight in weights):
        raise ValueError(f"no configuration for x {dtype}{rows.shape}, weights {shapes} of {form}")
    p = MediumCodesPlan(B, size, tuple(n for n, _ in shapes[::matrices]), matrices, form, config)
    p.check()
    return p


def _launch(p, rows, inputs, weights, dtype):
    arrays, tree = jax.tree.flatten((rows, inputs, tuple(weights)))
    kernel = plgpu.kernel(
        functools.partial(_block, p, tree),
        out_type=tuple(jax.ShapeDtypeStruct((p.B, n), dtype) for n in p.outputs),
        grid=(p.blocks,),
        grid_names=("block",),
        cluster=tuple(p.cluster.values()),
        cluster_names=tuple(p.cluster),
        num_threads=p.config.consumers * p.config.slices + 1,
        thread_name="warpgroup",
        scratch_types=_scratch(p, dtype),
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        kernel_name="medium_codes_gated" if p.matrices == 2 else "medium_codes_project",
    )
    return tuple(kernel(*arrays))


def _scratch(p: MediumCodesPlan, dtype: Any) -> dict[str, Any]:
    c, width = p.config, p.form.width(GROUP)
    x_dtype = p.form.dtype if p.form.multiplies_codes else dtype
    x_layout = swizzled(GROUP, 1) if p.form.multiplies_codes else SWIZZLED
    x_smem = plgpu.SMEM((c.stages, c.rows, GROUP), x_dtype, transforms=x_layout)
    tiles = (c.stages, c.consumers, TILE, width)
    # What follows the products takes the place of rows that have all been read.
    sent = partial_sums.memory(c.consumers, TILE, c.rows)
    sums = partial_sums.memory(c.consumers, TILE, p.kept)
    gates = plgpu.SMEM((c.consumers, TILE, p.kept), jnp.float32)
    out = plgpu.SMEM((c.consumers, p.kept, p.features), dtype, transforms=swizzled(p.features))
    after = (
        *[sent] * (c.slices > 1),
        *[sums] * (c.splits > 1),
        *[gates] * (p.matrices > 1),
        out,
    )
    free = plgpu.Barrier(num_arrivals=c.consumers, num_barriers=c.stages)
    if "rows" in p.cluster:  # A slot is free when no block that it was filled for reads it.
        free = plgpu.ClusterBarrier(
            collective_axes=("rows",), num_arrivals=c.consumers, num_barriers=c.stages
        )
    multiplying = c.consumers * c.slices
    done = plgpu.Barrier(num_arrivals=multiplying)
    sliced = arrived = None
    if c.slices > 1:
        sliced = plgpu.Barrier(num_barriers=c.consumers)
    if c.splits > 1:
        done = plgpu.ClusterBarrier(collective_axes=(AXIS,), num_arrivals=multiplying)
        arrived = plgpu.Barrier(num_barriers=c.consumers)
    return {
        "x_after": plgpu.RefUnion(x_smem, after),
        "w_smem": plgpu.SMEM(tiles, p.form.dtype, transforms=swizzled(width, 1)),
        # Codes of each consumer's tile, of one copy or of two, and rows.
        "filled": plgpu.Barrier(num_arrivals=p.matrices * c.consumers + 1, num_barriers=c.stages),
        "free": free,
        "done": done,
        "sliced": sliced,
        "arrived": arrived,
    }


def _block(p, tree, *refs, x_after, w_smem, filled, free, done, sliced, arrived):
    x, inputs, weights = jax.tree.unflatten(tree, refs[: tree.num_leaves])
    outputs = refs[tree.num_leaves :]
    x_smem, after = x_after
    warpgroup, c = lax.axis_index("warpgroup"), p.config
    producer = c.consumers * c.slices

    @pl.when(warpgroup == producer)
    def _produce():
        if p.moves_registers:
            plgpu.set_max_registers(_PRODUCER_REGISTERS, action="decrease")

        def codes(consumer):
            p.by_output(
                p.first_tile + consumer,
                functools.partial(_stream_codes, p, weights, consumer, w_smem, filled, free),
            )

        on_warps(
            lambda: _stream_rows(p, x, x_smem, filled, free),
            *[functools.partial(codes, consumer) for consumer in range(c.consumers)],
        )

    @pl.when(warpgroup < producer)
    def _consume():
        if p.moves_registers:
            plgpu.set_max_registers(_CONSUMER_REGISTERS, action="increase")
        consumer, part = warpgroup, 0
        if c.slices > 1:
            consumer, part = lax.rem(warpgroup, c.consumers), lax.div(warpgroup, c.consumers)
        tile = p.first_tile + consumer
        multiply = _multiply_groups if p.form.is_grouped else _multiply
        sums = multiply(p, weights, inputs, tile, consumer, part, x_smem, w_smem, filled, free)
        if c.splits > 1:  # A single thread tells the other block.
            plgpu.commit_smem()
        plgpu.barrier_arrive(done)
        plgpu.barrier_wait(done)
        if c.slices == 1:
            _finish(p, weights, outputs, sums, tile, consumer, after, arrived)
            return
        sent, barrier = after[0].at[consumer], sliced.at[consumer]

        @pl.when(part > 0)
        def _send():
            partial_sums.send(sums, sent, barrier)

        @pl.when(part == 0)
        def _add():
            added = partial_sums.add_sent(sums, sent, barrier, OPERAND)
            _finish(p, weights, outputs, added, tile, consumer, after[1:], arrived)


def _finish(p, weights, outputs, sums, tile, consumer, after, arrived):
    """Writes a tile from its block's sums."""
    if p.config.splits > 1:
        received, barrier = after[0].at[consumer], arrived.at[consumer]
        sums = partial_sums.add_over_cluster(sums, received, barrier, OPERAND)
    if not p.form.is_grouped:
        scale = values_of_tile(p, [each.scale for each in weights], tile, None)
        sums = sums * lax.broadcast_in_dim(scale, sums.shape, [0])
    out_smem = after[-1].at[consumer]
    if p.matrices == 2:
        _gate(p, sums, after[-2].at[consumer], out_smem)
    else:
        store_anyhow(out_smem.transpose((1, 0)), sums.astype(out_smem.dtype))
    plgpu.commit_smem()

    def write(output, feature):
        rows = pl.ds(p.row + p.along(AXIS) * p.kept, p.kept)
        target = outputs[output].at[rows, pl.ds(feature, p.features)]
        plgpu.copy_smem_to_gmem(out_smem, target)

    p.by_output(tile, write)
    plgpu.wait_smem_to_gmem(0)


def _stream(p, free, copy):
    """Producer warp: calls `copy(stage, chunk)` for every piece once its stage is free."""

    def one(step, _):
        stage = lax.rem(step, jnp.int32(p.config.stages))
        pl.when(step >= p.config.stages)(lambda: plgpu.barrier_wait(free.at[stage]))
        copy(stage, p.start + step)

    lax.fori_loop(0, p.steps, one, None)


def _stream_codes(p, weights, consumer, w_smem, filled, free, output, feature):
    width = p.form.width(GROUP)

    def copy(stage, chunk):
        for matrix in range(p.matrices):
            source = weights[output * p.matrices + matrix].weight
            plgpu.copy_gmem_to_smem(
                source.at[pl.ds(feature, p.features), pl.ds(chunk * width, width)],
                w_smem.at[stage, consumer, pl.ds(matrix * p.features, p.features)],
                filled.at[stage],
                collective_axes="rows" if "rows" in p.cluster else None,
            )

    _stream(p, free, copy)


def _stream_rows(p, x, x_smem, filled, free):
    def copy(stage, chunk):
        plgpu.copy_gmem_to_smem(
            x.at[pl.ds(p.row, p.config.rows), pl.ds(chunk * GROUP, GROUP)],
            x_smem.at[stage],
            filled.at[stage],
        )

    _stream(p, free, copy)


def _multiply(p, weights, inputs, tile, consumer, part, x_smem, w_smem, filled, free):
    """A tile's features times the block's rows, not scaled, over every `slices`-th chunk."""

    def products(sums):
        def one(index, _):
            step = index * p.config.slices + part
            stage = lax.rem(step, jnp.int32(p.config.stages))
            plgpu.barrier_wait(filled.at[stage])
            operand = _operand(p, w_smem.at[stage, consumer])
            plgpu.wgmma(sums, operand, x_smem.at[stage].transpose((1, 0)))
            plgpu.wgmma_wait(0)  # Lets the next tile have this one's registers.
            _release(p, free, step)

        lax.fori_loop(0, p.steps_of(part), one, None)
        return sums[...]

    return pl.run_scoped(products, plgpu.ACC((TILE, p.config.rows), jnp.float32))


def _multiply_groups(p, weights, inputs, tile, consumer, part, x_smem, w_smem, filled, free):
    """The same where each chunk has scales: its sums are scaled before they are added."""
    last = p.start + p.steps - 1

    def ask(chunk):
        arrays = [[each.scale for each in weights]]
        if p.form.has_zeros:
            arrays.append([each.zero for each in weights])
        return tuple(values_of_tile(p, each, tile, jnp.minimum(chunk, last)) for each in arrays)

    def one(index, carry):
        sums, (scale, *zero) = carry
        step = index * p.config.slices + part
        stage, chunk = lax.rem(step, jnp.int32(p.config.stages)), p.start + step
        plgpu.barrier_wait(filled.at[stage])
        asked = ask(chunk + p.config.slices)

        def products(sums):
            operand = _operand(p, w_smem.at[stage, consumer], *zero)
            plgpu.wgmma(sums, operand, x_smem.at[stage].transpose((1, 0)))
            # Meanwhile the scales of inputs arrive.
            columns = pl.ds(p.row, p.config.rows)
            loaded = [load_global(each.at[chunk, columns], _COLUMN) for each in inputs]
            return sums[...], loaded

        more, loaded = pl.run_scoped(products, plgpu.ACC((TILE, p.config.rows), jnp.float32))
        _release(p, free, step)
        for values in loaded:
            more = more * lax.broadcast_in_dim(values, more.shape, [1])
        return sums + more * lax.broadcast_in_dim(scale, more.shape, [0]), asked

    zeros = jnp.zeros((TILE, p.config.rows), jnp.float32)
    carry = plgpu.layout_cast(zeros, OPERAND), ask(p.start + part)
    return lax.fori_loop(0, p.steps_of(part), one, carry)[0]


def _operand(p, codes, *zero):
    """A tile of codes as the first operand of a product."""
    if p.form.multiplies_codes:
        return codes
    wide = widened(codes)
    for values in zero:
        wide = wide - lax.broadcast_in_dim(values - 8.0, wide.shape, [0]).astype(wide.dtype)
    return wide


def _release(p, free, step):
    """Frees the stage of a step whose products are done."""

    # Only where a block waits for it: other blocks of the cluster may have ended.
    @pl.when(step + p.config.stages < p.steps)
    def _():
        if "rows" in p.cluster:  # A single thread tells the other blocks.
            plgpu.commit_smem()
        plgpu.barrier_arrive(free.at[lax.rem(step, jnp.int32(p.config.stages))])


def _gate(p, sums, gates, out):
    """Brings gate and up, whose sums are in different threads, together."""
    store_anyhow(gates, sums)
    plgpu.commit_smem()
    gate, up = (
        plgpu.load(gates.at[pl.ds(matrix * p.features, p.features)], layout=HALF, optimized=False)
        for matrix in range(2)
    )
    product = gate / (1.0 + jnp.exp(-gate)) * up
    store_anyhow(out.transpose((1, 0)), product.astype(out.dtype))
