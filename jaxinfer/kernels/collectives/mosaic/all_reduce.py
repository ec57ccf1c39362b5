"""A sum over the GPUs of one host in one launch, for the small all-reduces of decode steps.

Every GPU writes its operand straight into memory of all others over NVLink, raises a flag there,
waits for theirs, and adds up what has arrived: one crossing of the link and a flag, where a ring
needs many. It is an ordinary kernel, so it is captured in CUDA graphs, and unlike NCCL's kernels it
does not force a graph to be recorded anew at each launch.

Each GPU owns a *peer buffer*, which the others know by its address (`peer_buffer_bytes`, zeroed
once): a count of sums and flags for each block of threads, and two halves of data. Sum n uses half
n % 2, so that data which a GPU still reads in sum n is not overwritten before sum n + 2, for which
all must have finished sum n. Flags hold n, hence never need to be cleared; `instructions.py`
explains how n wraps around. Blocks of threads are independent: block i of one GPU exchanges data
only with block i of each other GPU.

GPUs that differ in bit d - 1, d = 1 to N - 1, are partners at distance d (rank XOR d), so both name
each other the same, and a tree over the distances adds in the same order on all: their sums are
equal in every bit, provided that N is a power of two.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.collectives.mosaic.peer_buffer import (
    MOST_BLOCKS,
    MOST_LINES,
    MOST_PACKET_LINES,
    PeerBuffer,
    open_exchange,
    shared_peer_buffer,
    trade,
)
from jaxinfer.kernels.mosaic.pages import Ref, RegisterLayout
from jaxinfer.kernels.mosaic.rows import load_global, store_anyhow

_THREADS = 128
_VECTOR = 8  # elements of 16 bytes
_LINE = _THREADS * _VECTOR
# As packets they are read sooner, but twice the bytes cross the link: on two H200s 256 lines take
# as long either way.
_MOST_PACKETS = 128


def supports(size: int, dtype: jax.typing.DTypeLike, num_devices: int) -> bool:
    """True if `all_reduce` takes arrays of this size and dtype over that number of GPUs."""
    narrow = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
    return supports_devices(num_devices) and narrow and _per_block(size, _LINE) > 0


def supports_norm(shape: tuple[int, ...], dtype: jax.typing.DTypeLike, num_devices: int) -> bool:
    """True if `all_reduce_norm` takes arrays of this shape and dtype over that number of GPUs."""
    size = shape[0] * shape[1] if len(shape) == 2 else 0
    return supports(size, dtype, num_devices) and _per_block(size, shape[1]) > 0


def supports_devices(num_devices: int) -> bool:
    """True if sums over a given number of GPUs are supported."""
    return num_devices in (2, 4)


def peer_buffer_bytes(num_devices: int) -> int:
    """Bytes of device memory on each GPU that the others write to."""
    return shared_peer_buffer(num_devices).num_bytes


def all_reduce(
    x: Float[Array, "*batch E"],
    peers: Int32[Array, "N 2"],
    *,
    onto: Float[Array, "*batch E"] | None = None,
) -> Float[Array, "*batch E"]:
    """The sum of all GPUs' `x`, added in float32 and rounded once; equal in every bit on all.

    To be called inside `shard_map`. All GPUs must call it equally often, in the same order, with
    the same shapes, and one GPU must run one at a time: each should depend on the one before. A GPU
    whose partner does not come returns NaN after some time: see `instructions.py`.

    Args:
        x: bfloat16 or float16.
        peers: addresses of peer buffers in this GPU's address space, low and high half: index d is
            the GPU whose rank is this GPU's XOR d, so its own is first.
        onto: added to the rounded sum, the same on all GPUs; the result is rounded again.

    Raises:
        ValueError: `supports` says no.
    """
    if not supports(x.size, x.dtype, peers.shape[0]):
        raise ValueError(
            f"sums over {peers.shape[0]} GPUs take 2 or 4 of them and a multiple of {_LINE} "
            f"elements in bfloat16 or float16, not too many; got {x.dtype}{x.shape}"
        )
    operands = [x] if onto is None else [x, onto]
    blocks = _blocks(x.size, _LINE)
    out = jax.ShapeDtypeStruct(blocks, x.dtype)
    kernel = _kernel(_sum_block, blocks, peers.shape[0], out)
    return kernel(peers, *(operand.reshape(blocks) for operand in operands)).reshape(x.shape)


# A layer has two of them: under a jit of its own the kernel is traced and lowered once.
@functools.partial(jax.jit, static_argnames=("eps",))
def all_reduce_norm(
    x: Float[Array, "B E"],
    peers: Int32[Array, "N 2"],
    onto: Float[Array, "B E"],
    weight: Float[Array, " E"],
    *,
    eps: float,
) -> tuple[Float[Array, "B E"], Float[Array, "B E"]]:
    """`all_reduce` of `x` onto a stream, the same on all GPUs, and its RMSNorm, as in `add_norm`.

    Returns:
        The stream and its norm, in x's dtype.

    Raises:
        ValueError: `supports_norm` says no.
    """
    if not supports_norm(x.shape, x.dtype, peers.shape[0]):
        raise ValueError(
            f"sums of whole rows take 2 or 4 GPUs and rows of a multiple of {_LINE} elements in "
            f"bfloat16 or float16, not too many; got {x.dtype}{x.shape} on {peers.shape[0]} GPUs"
        )
    blocks = _blocks(x.size, x.shape[1])
    out = jax.ShapeDtypeStruct(blocks, x.dtype)
    body = functools.partial(_norm_block, eps)
    kernel = _kernel(body, blocks, peers.shape[0], (out, out), suffix="_norm")
    total, normal = kernel(peers, x.reshape(blocks), onto.reshape(blocks), weight)
    return total.reshape(x.shape), normal.reshape(x.shape)


def _kernel(
    body: Any, blocks: tuple[int, int, int], num_devices: int, out: Any, *, suffix: str = ""
) -> Any:
    return plgpu.kernel(
        functools.partial(body, shared_peer_buffer(num_devices)),
        out_type=out,
        grid=blocks[:1],
        grid_names=("block",),
        # Nothing of its own is both read and written.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        kernel_name=f"all_reduce{suffix}",
    )


def _blocks(size: int, row: int) -> tuple[int, int, int]:
    """Blocks, rows of a block, elements of a row."""
    rows = _per_block(size, row)
    return size // (rows * row), rows, row


def _per_block(size: int, row: int) -> int:
    """Rows of a given number of elements that each block takes; 0 if they can't be divided."""
    if size % row or row % _LINE:
        return 0
    count = size // row
    divisors = (n for n in range(1, MOST_LINES * _LINE // row + 1) if count % n == 0)
    return next((n for n in divisors if count // n <= MOST_BLOCKS), 0)


def _layout() -> RegisterLayout:
    """`[rows, elements]` over 128 threads, 16 bytes of each line a thread."""
    return plgpu.Layout.TILED(
        plgpu.Tiling(((1, _LINE), (32 * _VECTOR,), (_VECTOR,))),
        warp_dims=(-3,),
        lane_dims=(-2,),
        vector_dim=-1,
    )


def _sum_block(peer_buffer: PeerBuffer, peers: Ref, x: Ref, *onto_and_out: Ref) -> None:
    *onto, out = onto_and_out
    block, layout = lax.axis_index("block"), _layout()
    total = _summed(peer_buffer, peers, x, block, layout)
    for ref in onto:
        stream = load_global(ref.at[block], layout).astype(jnp.float32)
        total = (stream + total.astype(jnp.float32)).astype(out.dtype)
    store_anyhow(out.at[block], total)


def _norm_block(
    eps: float,
    peer_buffer: PeerBuffer,
    peers: Ref,
    x: Ref,
    onto: Ref,
    weight: Ref,
    total: Ref,
    normal: Ref,
) -> None:
    block, layout = lax.axis_index("block"), _layout()
    # Load data that is there before waiting for data that is not.
    old = load_global(onto.at[block], layout).astype(jnp.float32)
    scale = load_global(weight, layout.reduce(0)).astype(jnp.float32)
    new = _summed(peer_buffer, peers, x, block, layout)
    summed = (old + new.astype(jnp.float32)).astype(total.dtype)
    store_anyhow(total.at[block], summed)
    wide = summed.astype(jnp.float32)
    inverse = lax.rsqrt((wide * wide).sum(axis=1) / weight.shape[0] + eps)
    narrow = (wide * lax.broadcast_in_dim(inverse, wide.shape, [0])).astype(total.dtype)
    scaled = narrow.astype(jnp.float32) * lax.broadcast_in_dim(scale, wide.shape, [1])
    store_anyhow(normal.at[block], scaled.astype(normal.dtype))


def _summed(
    peer_buffer: PeerBuffer, peers: Ref, x: Ref, block: jax.Array, layout: RegisterLayout
) -> jax.Array:
    """This block's part of the sum, rounded."""
    opened = open_exchange(peer_buffer, block, peers)
    own = load_global(x.at[block], layout)
    lines = own.size // _LINE
    as_packets = lines <= MOST_PACKET_LINES and x.size // _LINE <= _MOST_PACKETS
    others = trade(peer_buffer, own, opened, layout, as_packets=as_packets)
    return add_shares(own, others)


def add_shares(own: jax.Array, others: Sequence[jax.Array]) -> jax.Array:
    """The rounded sum of a GPU's own share and its partners', by distance; the same on all."""
    wide = [share.astype(jnp.float32) for share in (own, *others)]
    while len(wide) > 1:
        wide = [left + right for left, right in zip(wide[::2], wide[1::2], strict=True)]
    return wide[0].astype(own.dtype)
