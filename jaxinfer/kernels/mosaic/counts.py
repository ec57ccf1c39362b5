"""Counts of what warpgroups of a launch have written, in device memory, for blocks that read it.

A count is two numbers, the first of which is counted up. It must be zero when the launch begins.
"""

from __future__ import annotations

from typing import Any

from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref

from jaxinfer.kernels.mosaic import ptx
from jaxinfer.kernels.mosaic.pages import Ref, Scalar

_SPLAT = plgpu.Layout.WG_SPLAT
_BYTES = 8
_COUNT = """{
    .reg .pred first;
    setp.eq.u32 first, $1, 0;
    @first red.release.gpu.global.add.u32 [$0], 1;
}"""
# The fence orders the copies that follow, by another proxy, behind what the count says is written.
_AWAIT = """{{
    .reg .pred again;
    .reg .b32 count;
LOOK:
    ld.acquire.gpu.global.u32 count, [$0];
    setp.lt.u32 again, count, {ready};
    @again bra LOOK;
    fence.proxy.async;
    bar.warp.sync 0xffffffff;
}}"""


def count(counts: Ref, number: Scalar) -> None:
    """Says that a warpgroup, which calls it, has written its part of what a count is of."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), _SPLAT))
    def add(context: Any, counts: Any, number: Any) -> None:
        del context
        thread = arith.andi(ptx.thread(), ptx.constant(127, 32))
        ptx.asm("fence.proxy.async;", "", [])
        ptx.warpgroup_barrier()
        ptx.asm(_COUNT, "l,r", [address(counts, number), thread])

    add(counts, number)  # pyright: ignore[reportCallIssue]


def wait(counts: Ref, number: Scalar, *, ready: int) -> None:
    """Waits until so many warpgroups have counted; called by one warp."""

    @plgpu.inline_mgpu(arg_types=(plgpu.RefType(), _SPLAT))
    def look(context: Any, counts: Any, number: Any) -> None:
        del context
        ptx.asm(_AWAIT.format(ready=ready), "l", [address(counts, number)])

    look(counts, number)  # pyright: ignore[reportCallIssue]


def address(counts: Any, number: Any) -> ptx.Word:
    """Of a count's first number, for a function of `plgpu.inline_mgpu`."""
    start = memref.extract_aligned_pointer_as_index(counts)
    start = arith.index_cast(ir.IntegerType.get_signless(64), start)
    return ptx.widened(ptx.word_of(number)) * _BYTES + ptx.Word(start)
