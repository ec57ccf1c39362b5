"""Products of float8 on tensor cores that run while a warpgroup reads the sums of earlier ones.

Pallas's accumulators begin at zero, which costs an instruction a value, and one is read when none
is being multiplied. Here `start` gives the sums of a product before they are there, and `landed`
waits for them alone.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import mma_utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import llvm

from jaxinfer.kernels.mosaic import ptx
from jaxinfer.kernels.mosaic.pages import Ref, swizzled

_DEPTH = 128  # of the contraction: a row of the operands in shared memory
_STEPS = 4  # of 32 values, wgmma's K
_OPERAND = plgpu.RefType(swizzled(_DEPTH, itemsize=1))
_IN_FLIGHT = plgpu.Layout._WGMMA_ACC_32BIT


def start(x: Ref, w: Ref) -> jax.Array:
    """Start `x @ w.T` of float8_e4m3fn, whose sums are `landed` before anything else reads them.

    Args:
        x: ``[64, 128]`` in shared memory, swizzled.
        w: ``[n, 128]`` in shared memory, swizzled.
    """
    (rows, _), (n, _) = x.shape, w.shape
    result = plgpu.ShapeDtypeStruct((rows, n), jnp.dtype(jnp.float32), layout=_IN_FLIGHT)

    @plgpu.inline_mgpu(arg_types=(_OPERAND, _OPERAND), return_type=result)
    def multiply(_: Any, x: Any, w: Any) -> Any:
        a, a_step = _descriptor(x, rows, k_major=False)
        b, b_step = _descriptor(mgpu.memref_transpose(w, (1, 0, 3, 2)), n, k_major=True)
        constraints = ",".join(["=f"] * (n // 2) + ["l"] * 2)
        return _array(_asm(_wgmma(n, a_step, b_step), constraints, [a, b]), (rows, n))

    return multiply(x, w)  # pyright: ignore[reportCallIssue]


def landed(sums: jax.Array, others: int) -> jax.Array:
    """The sums of a product that was started before `others`, which go on."""
    result = plgpu.ShapeDtypeStruct(sums.shape, jnp.dtype(jnp.float32), layout=plgpu.Layout.WGMMA)

    @plgpu.inline_mgpu(arg_types=(_IN_FLIGHT,), return_type=result)
    def wait(_: Any, sums: Any) -> Any:
        values = [llvm.extractelement(each, ptx.constant(0, 32)) for each in sums.registers.flat]
        ptx.asm(f"wgmma.wait_group.sync.aligned {others};", "", [])
        # No instructions, but nothing that reads the sums moves to a place before the wait.
        tied = ["=f"] * len(values) + [str(i) for i in range(len(values))]
        values = _asm("", ",".join(tied), values)
        return _array(values, sums.shape).to_layout(mgpu.WGMMA_LAYOUT)

    return wait(sums)  # pyright: ignore[reportCallIssue]


def _descriptor(operand: Any, rows: int, *, k_major: bool) -> tuple[Any, int]:
    """Where wgmma finds an operand, and what a step of K adds to that."""
    size = (_DEPTH, rows) if k_major else (rows, _DEPTH)
    (value, strides), _, _ = mma_utils.create_descriptor(
        operand, swizzle=_DEPTH, group_size=size, logical_k_major=k_major
    )
    return value, strides[1][0] >> 4


def _wgmma(n: int, a_step: int, b_step: int) -> str:
    """The first step stores its sums, the others add theirs."""
    sums = "{" + ", ".join(f"${i}" for i in range(n // 2)) + "}"
    code = (
        "{ .reg .pred p, q; .reg .b64 a, b; setp.ne.b32 p, 0, 0; setp.eq.b32 q, 0, 0; "
        f"mov.b64 a, ${n // 2}; mov.b64 b, ${n // 2 + 1}; wgmma.fence.sync.aligned; "
    )
    for step in range(_STEPS):
        if step:
            code += f"add.s64 a, a, {a_step}; add.s64 b, b, {b_step}; "
        code += f"wgmma.mma_async.sync.aligned.m64n{n}k32.f32.e4m3.e4m3 "
        code += f"{sums}, a, b, {'q' if step else 'p'}, 1, 1; "
    return code + "wgmma.commit_group.sync.aligned; }"


def _asm(code: str, constraints: str, operands: list[Any]) -> list[Any]:
    """A thread's float32 results, one for each "=f" of the constraints."""
    count, f32 = constraints.count("=f"), ir.F32Type.get()
    kind = llvm.StructType.get_literal([f32] * count)
    found = llvm.inline_asm(kind, operands, code, constraints, has_side_effects=True)
    return [llvm.extractvalue(f32, found, [i]) for i in range(count)]


def _array(values: list[Any], shape: tuple[int, ...]) -> Any:
    """An array of a thread's values, laid out as an accumulator."""
    layout, kind = _IN_FLIGHT.to_mgpu(), ir.VectorType.get((1,), ir.F32Type.get())
    registers = np.empty(layout.registers_shape(shape), dtype=object)
    for at, value in zip(np.ndindex(registers.shape), values, strict=True):
        registers[at] = llvm.insertelement(llvm.mlir_undef(kind), value, ptx.constant(0, 32))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)
