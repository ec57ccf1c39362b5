"""Projections of a few rows at the memory's speed, with what surrounds them fused in.

At batch 1 to 16 a decode step is mostly products of a few activations with large matrices. Such a
product is a read of the matrix; everything else should hide behind it. These kernels cover a layer:

* `norm_project`: RMSNorm, then any number of projections of its output (q, k and v at once);
* `norm_gated`: RMSNorm, then `silu(x gate^T) * (x up^T)`;
* `project_add`: a projection added to the residual stream; or `project`, without that; or
  `project_sum_add`, where it is one device's share of a sum, and that is added.

`small_plan.py` cuts a product into blocks, `small_block.py` computes a block's sums, and this file
turns the sums into results.

The norm commutes with the product: `(x / rms(x)) w^T = (x w^T) / rms(x)`. So blocks multiply by the
norm's weight only, and the block that finishes an output divides by the root mean square.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.collectives.mosaic.all_reduce import add_shares, supports_devices
from jaxinfer.kernels.collectives.mosaic.peer_buffer import (
    MOST_BLOCKS,
    open_exchange,
    shared_peer_buffer,
    trade,
)
from jaxinfer.kernels.matmul.mosaic.small_activations import (
    cut,
    load_squares,
    memory_of_rows,
    of_consumer,
)
from jaxinfer.kernels.matmul.mosaic.small_block import (
    Ring,
    by_output,
    multiply,
    request_weights,
    sum_over_cluster,
)
from jaxinfer.kernels.matmul.mosaic.small_codes import memory_of_codes, ring_of_codes
from jaxinfer.kernels.matmul.mosaic.small_codes_plan import CodesPlan, plan_codes, supports_codes
from jaxinfer.kernels.matmul.mosaic.small_plan import Plan, SmallConfig, make_plan
from jaxinfer.kernels.matmul.mosaic.small_plan import supports as supports_plain
from jaxinfer.kernels.matmul.quantized import QuantizedLinear
from jaxinfer.kernels.matmul.weight_form import TILE, WeightForm
from jaxinfer.kernels.mosaic.pages import SWIZZLED, on_warps
from jaxinfer.kernels.mosaic.rows import load_global, row_layout, store_anyhow

_VECTOR = 8  # elements of 16 bytes
_SHARE_ROWS = 16  # of which a warpgroup holds one vector a thread
_COLUMN = plgpu.Layout.WGMMA.reduce(0)

type Weight = Float[Array, "_ I"] | QuantizedLinear


def norm_project(
    x: Float[Array, "B I"],
    norm: Float[Array, " I"] | None,
    weights: Sequence[Weight],
    *,
    eps: float,
    config: SmallConfig | None = None,
) -> tuple[Float[Array, "B _"], ...]:
    """`rms_norm(x) @ weight.T` for every weight, in one launch.

    Args:
        x: activations in bfloat16: 1, 2, 4, 8 or 16 rows. (Not float16: the activations times the
            norm's weight, before the division, could leave its range.)
        norm: weight of the RMSNorm; None multiplies x as it is.
        weights: `[O, I]` each, O a multiple of 64 and I of 64, in x's dtype; or quantized ones of
            one form, I a multiple of 128.
        eps: of the norm.
        config: tuning; None takes the plan's own.

    Raises:
        ValueError: rows, sizes or a dtype that the kernels can't load.
    """
    kind = "plain" if norm is not None else "bare"
    return _run(kind, x, tuple(weights), norm=norm, eps=eps, config=config)


def norm_gated(
    x: Float[Array, "B I"],
    norm: Float[Array, " I"] | None,
    gate: Weight,
    up: Weight,
    *,
    eps: float,
    config: SmallConfig | None = None,
) -> Float[Array, "B F"]:
    """`silu(h @ gate.T) * (h @ up.T)` with `h = rms_norm(x)`; see `norm_project` for the limits.

    Only quantized weights are taken without a norm.
    """
    if norm is None and not isinstance(gate, QuantizedLinear):
        raise ValueError("gate and up need a norm, unless they are quantized")
    return _run("gated", x, (gate, up), norm=norm, eps=eps, config=config)[0]


def project_add(
    x: Float[Array, "B I"],
    weight: Weight,
    residual: Float[Array, "B O"],
    *,
    config: SmallConfig | None = None,
) -> Float[Array, "B O"]:
    """`residual + x @ weight.T`; see `norm_project` for the limits."""
    return _run("residual", x, (weight,), residual=residual, config=config)[0]


def project(
    x: Float[Array, "B I"], weight: Weight, *, config: SmallConfig | None = None
) -> Float[Array, "B O"]:
    """`x @ weight.T`; see `norm_project` for the limits."""
    return _run("bare", x, (weight,), config=config)[0]


def project_sum_add(
    x: Float[Array, "B I"],
    weight: Weight,
    residual: Float[Array, "B O"],
    peers: Int32[Array, "N 2"],
    *,
    config: SmallConfig | None = None,
) -> Float[Array, "B O"]:
    """`residual` + the sum of all GPUs' `x @ weight.T`, each rounded; equal in every bit on all.

    Each block of threads gives the others its features as soon as it has them, so that only the
    last ones cross the link while no weights are read. Call it as `all_reduce` demands.
    Not all blocks run at once: that no GPU waits for blocks which another can't start, because its
    own wait, rests on GPUs starting blocks in the order of their numbers, as they do.

    Args:
        x: this GPU's share of the activations; see `norm_project` for the limits.
        weight: its share of the weight.
        residual: the residual stream, the same on all GPUs.
        peers: as for `all_reduce`.
        config: tuning; None takes the plan's own.

    Raises:
        ValueError: `supports_sum` says no.
    """
    shape = weight.shape
    if not supports_sum(x.shape[0], shape, x.dtype, peers.shape[0]):
        raise ValueError(
            f"sums of products take 2 or 4 GPUs and at most {MOST_BLOCKS * TILE} features; got a "
            f"weight {shape} on {peers.shape[0]} GPUs"
        )
    return _run("summed", x, (weight,), residual=residual, peers=peers, config=config)[0]


def supports(
    B: int,
    shapes: Sequence[tuple[int, ...]],
    dtype: jax.typing.DTypeLike,
    form: WeightForm | None = None,
) -> bool:
    """Whether the kernels take `B` rows and weights `(O, I)`, plain ones or codes of a form."""
    if form is None:
        return supports_plain(B, shapes, dtype)
    return supports_codes(B, shapes, dtype, form)


def supports_sum(
    B: int, shape: tuple[int, ...], dtype: jax.typing.DTypeLike, num_devices: int
) -> bool:
    """Whether `project_sum_add` takes `B` rows and a share `(O, I)` of a weight."""
    fits = shape[0] <= MOST_BLOCKS * TILE and supports_devices(num_devices)
    return fits and supports_plain(B, [shape], dtype)


def _run(kind, x, weights, *, norm=None, residual=None, peers=None, eps=0.0, config=None):
    B = x.shape[0]
    shapes = [w.shape for w in weights]
    form = weights[0].form if isinstance(weights[0], QuantizedLinear) else None
    if not supports(B, shapes, x.dtype, form):
        raise ValueError(
            "rows must number 1, 2, 4, 8 or 16, sizes be multiples of 64 and the dtype bfloat16, "
            "inputs of quantized weights a multiple of 128 with a scale for all of them or for 128;"
            f" got x {x.dtype}{x.shape} and weights {shapes}"
        )
    if form is None:
        p = make_plan(kind, B, shapes, eps, config)
    else:
        p = plan_codes(kind, B, shapes, eps, config, form, has_norm=norm is not None)
    N, stages = p.columns, p.config.consumers * p.stages
    refilled = p.chunks > p.stages
    kept = p.config.consumers * p.kept_chunks
    scratch = {
        "w_smem": plgpu.SMEM((p.stages, p.matrices, TILE, p.chunk), x.dtype, transforms=SWIZZLED),
        "x_smem": plgpu.SMEM((kept, N, p.chunk), x.dtype, transforms=SWIZZLED),
        "o_smem": plgpu.SMEM((_SHARE_ROWS if kind == "summed" else N, TILE), x.dtype),
        "filled": plgpu.Barrier(num_arrivals=p.matrices, num_barriers=stages),
        "free": plgpu.Barrier(num_barriers=stages) if refilled else None,
        "partial": None,
        "gathered": None,
        "codes": None,
    }
    if p.splits > 1:
        parts = (p.matrices + p.normed, p.splits - 1)
        scratch["partial"] = plgpu.SMEM((*parts, TILE, N), jnp.float32)
        scratch["gathered"] = plgpu.Barrier(num_arrivals=parts[0] * parts[1])
    if isinstance(p, CodesPlan):
        scratch |= memory_of_codes(p, x.dtype)
    else:
        scratch |= memory_of_rows(p, x.dtype, are_scaled=False)
    arrays, tree = jax.tree.flatten(weights)
    kernel = plgpu.kernel(
        functools.partial(_block, p, tree),
        out_type=tuple(jax.ShapeDtypeStruct((B, n), x.dtype) for n in p.outputs),
        grid=(p.tiles,),
        grid_names=("tile",),
        cluster=(p.splits,) if p.splits > 1 else (),
        cluster_names=("split",) if p.splits > 1 else (),
        num_threads=p.config.consumers + 1,
        thread_name="warpgroup",
        scratch_types=scratch,
        # All that one thread writes and another reads is committed in between.
        compiler_params=plgpu.CompilerParams(approx_math=True, unsafe_no_auto_barriers=True),
        kernel_name=f"small_{kind}",
    )
    norm = None if norm is None else cut(p, norm)
    return kernel(cut(p, x), *arrays, *[a for a in (norm, residual, peers) if a is not None])


def _block(p: Plan, tree, x, *refs, w_smem, x_smem, o_smem, filled, free, squares, alone, partial,
           gathered, codes):  # fmt: skip
    weights, rest = jax.tree.unflatten(tree, refs[: tree.num_leaves]), refs[tree.num_leaves :]
    extra, outputs = rest[: len(rest) - len(p.outputs)], rest[len(rest) - len(p.outputs) :]
    tile, split = lax.axis_index("tile"), lax.axis_index("split") if p.splits > 1 else jnp.int32(0)
    start = split * p.slice
    warpgroup = lax.axis_index("warpgroup")
    memory = (w_smem, x_smem, filled, free)

    def ring_of(consumer):
        own = of_consumer(squares, alone, consumer)
        if isinstance(p, CodesPlan):
            return ring_of_codes(p, (*memory, *own), codes, split, consumer)
        return Ring(p, *memory, *own)

    @pl.when(warpgroup == p.config.consumers)
    def _produce():
        rings = map(ring_of, range(p.config.consumers))
        on_warps(*(functools.partial(request_weights, p, weights, tile, start, r) for r in rings))

    @pl.when(warpgroup != p.config.consumers)
    def _consume():
        residual = _residual(p, extra[0], tile) if p.kind in ("residual", "summed") else None
        opened = None
        if p.kind == "summed":
            opened = open_exchange(shared_peer_buffer(extra[1].shape[0]), tile, extra[1])
        norm, ring = extra[0] if p.normed else None, ring_of(warpgroup)
        sums = multiply(p, x, norm, weights, tile, start, ring)
        if p.normed:  # Travels with the sums as one more matrix.
            column = load_squares(p, ring.squares, _COLUMN)
            sums = (*sums, lax.broadcast_in_dim(column, sums[0].shape, [1]))

        def finish(sums):
            _finish(p, residual, opened, sums, tile, o_smem, outputs)

        def add_clusters(sums):
            sum_over_cluster(p.splits, split, sums, partial, gathered, finish)

        ring.sum_over_block(sums, add_clusters)


def _finish(p: Plan, residual, opened, sums, tile, o_smem, outputs):
    """Scales, gates or adds; `sums` are `[TILE, N]`, features by rows of the batch."""
    if p.normed:
        *sums, squares = sums
        scale = lax.rsqrt(squares / p.size + p.eps)
        sums = [values * scale for values in sums]
    out = sums[0]
    if p.kind == "gated":
        out = out / (1.0 + jnp.exp(-out)) * sums[1]
    store_anyhow(o_smem.at[pl.ds(0, p.columns)].transpose((1, 0)), out.astype(o_smem.dtype))
    plgpu.commit_smem()
    if opened is not None:
        _sum_over_devices(p, o_smem, opened)
    rows = plgpu.load(o_smem.at[pl.ds(0, p.B)], layout=row_layout(p.B, TILE), optimized=False)
    if residual is not None:
        total = residual.astype(jnp.float32) + rows.astype(jnp.float32)
        rows = total.astype(rows.dtype)

    def write(output, feature):
        store_anyhow(outputs[output].at[:, pl.ds(feature, TILE)], rows)

    by_output(p, tile, write)


def _sum_over_devices(p: Plan, o_smem, opened):
    """Puts the sum of all devices' `[B, TILE]` in the place of this one's."""
    layout = row_layout(_SHARE_ROWS, TILE)
    own = plgpu.load(o_smem, layout=layout, optimized=False)
    peer_buffer, threads = shared_peer_buffer(len(opened.bases)), p.B * TILE // _VECTOR
    others = trade(peer_buffer, own, opened, layout, as_packets=True, num_threads=threads)
    store_anyhow(o_smem, add_shares(own, others))
    plgpu.commit_smem()


def _residual(p: Plan, stream, tile):
    """The residual stream's part that a tile is added to, asked for before it is needed."""
    return load_global(stream.at[:, pl.ds(tile * TILE, TILE)], row_layout(p.B, TILE))
