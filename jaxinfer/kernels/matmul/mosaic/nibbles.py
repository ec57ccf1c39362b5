"""Products of integers of four bits with activations, by the tensor cores' older instructions.

`mma.sync` takes 16 output features, an operand of a warp alone, where wgmma takes 64 of four warps.
So nothing is awaited between widening and multiplying, and each thread keeps the integers that it
loads: the order of a contraction is free where both operands have the same. A thread multiplies 8
inputs in turn that lie in a word of codes; `paired` stores activations as it widens them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from jaxinfer.kernels.matmul.weight_form import GROUP, TILE
from jaxinfer.kernels.mosaic.pages import Ref

_SUMS = plgpu.Layout.WGMMA
_FEATURES = _SUMS.reduce(1)
_CODES = plgpu.Layout.TILED(  # Two words of a feature for each thread, and two of the eighth next.
    plgpu.Tiling(((64, 32), (16, 32), (8, 32), (8,))),
    warp_dims=(-7,),
    lane_dims=(-3, -2),
    vector_dim=-1,
)
_ACTIVATIONS = plgpu.Layout.TILED(  # The same inputs of a row.
    plgpu.Tiling(((8, 64), (8, 16), (8,))),
    warp_dims=(plgpu.Replicated(4),),
    lane_dims=(-3, -4),
    vector_dim=-1,
)
_INTEGERS, _EXPONENT = 0x000F000F, 0x43004300  # 128 in bfloat16, whose last bits are an integer's
_ZERO = 136.0  # 128 + 8


def paired(values: jax.Array, layout: Any) -> jax.Array:
    """Activations ``[N, n]`` in bfloat16 in the order of `multiplied`: 0, 4, 1, 5, 2, 6, 3, 7.

    Args:
        values: of a layout in which each thread has 8 columns in turn.
        layout: theirs.
    """
    result = plgpu.ShapeDtypeStruct(values.shape, values.dtype, layout=layout)

    @plgpu.inline_mgpu(arg_types=(layout,), return_type=result)
    def shuffle(_: Any, given: Any) -> Any:
        registers = np.empty_like(given.registers)
        for index, register in np.ndenumerate(given.registers):
            registers[index] = vector.shuffle(register, register, [0, 4, 1, 5, 2, 6, 3, 7])
        return mgpu.FragmentedArray(
            _registers=registers, _layout=given.layout, _is_signed=given.is_signed
        )

    return shuffle(values)


def multiplied(codes: Sequence[Ref], x: Ref, zeros: Sequence[Ref]) -> list[jax.Array]:
    """Sums ``[TILE, N]`` of tiles of integers, less 8 or less their zero points, times rows.

    Args:
        codes: uint8 ``[TILE, 64]`` each, in shared memory.
        x: bfloat16 ``[N, GROUP]`` in the order of `paired`, likewise.
        zeros: nothing, or for each tile float32 ``[TILE]``, zero points less 8.
    """
    rows = plgpu.load(x, layout=_ACTIVATIONS, optimized=False)
    columns = x.shape[0]
    total = None if SUBTRACTS_FIRST else _totals(columns)(rows)
    found = []
    for index, tile in enumerate(codes):
        words = plgpu.load(tile, layout=_CODES, optimized=False)
        own = [
            plgpu.load(each, layout=_FEATURES, optimized=False) + _ZERO
            for each in zeros[index:][:1]
        ]
        if total is None:
            found.append(_product(columns, len(own))(words, rows, *own))
            continue
        less = _ZERO
        for values in own:
            less = jax.lax.broadcast_in_dim(values, (TILE, columns), [0])
        found.append(_product(columns, 0)(words, rows) - total * less)
    return found


SUBTRACTS_FIRST = True


def _totals(columns: int) -> Any:
    """The sum of each row's inputs, for every feature."""
    result = plgpu.ShapeDtypeStruct((TILE, columns), jnp.dtype(jnp.float32), layout=_SUMS)

    @plgpu.inline_mgpu(arg_types=(_ACTIVATIONS,), return_type=result)
    def total(_: Any, x: Any) -> Any:
        sums = [[_float(0.0)] * 4 for _ in range(columns // 8)]
        ones = [_word(0x3F803F80)] * 4
        for n, block in enumerate(x.registers.reshape(columns // 8, 4)):
            for values in block:
                row = _words(values)
                for i in (0, 2):
                    sums[n] = _mma(sums[n], ones, row[i : i + 2])
        return _result(sums, columns)

    return total


def _result(sums: Sequence[Any], columns: int) -> Any:
    found = [_vector(total[at : at + 2]) for total in sums for at in (0, 2)]
    registers = np.empty(len(found), object)
    registers[:] = found
    layout = _SUMS.to_mgpu()
    registers = registers.reshape(layout.registers_shape((TILE, columns)))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


def _product(columns: int, zeros: int) -> Any:
    result = plgpu.ShapeDtypeStruct((TILE, columns), jnp.dtype(jnp.float32), layout=_SUMS)
    types = (_CODES, _ACTIVATIONS, *[_FEATURES] * zeros)

    @plgpu.inline_mgpu(arg_types=types, return_type=result)
    def product(_: Any, codes: Any, x: Any, *zeros: Any) -> Any:
        less = [_word(_ZERO_PAIR)] * 2
        for values in zeros:
            less = [_pair_of(register) for register in values.registers.flat]
        blocks = x.registers.reshape(columns // 8, 2, 2)
        sums = [[_float(0.0)] * 4 for _ in blocks]
        # Of each half of the inputs, two words of a feature and two of the eighth next.
        for half, words in enumerate(codes.registers.reshape(2, 2)):
            for index, pair in enumerate(zip(*map(_words, words), strict=True)):
                first, second = map(_widened, pair, less)
                for n, block in enumerate(blocks):
                    row = _words(block[half, index])
                    for i in (0, 2):
                        a = (first[i], second[i], first[i + 1], second[i + 1])
                        sums[n] = _mma(sums[n], a, row[i : i + 2])
        return _result(sums, columns)

    return product


_ZERO_PAIR = 0x43084308


def _widened(word: Any, less: Any) -> list[Any]:
    """Four pairs of bfloat16 from a word: its integers 0 and 4, 1 and 5, 2 and 6, 3 and 7."""
    pairs = []
    for index in range(4):
        shifted = arith.shrui(word, _word(4 * index)) if index else word
        if not SUBTRACTS_FIRST:
            code = f"lop3.b32 $0, $1, {_INTEGERS:#x}, {_EXPONENT:#x}, 0xea;"
            pairs.append(llvm.inline_asm(_i32(), [shifted], code, "=r,r"))
            continue
        code = (
            "{ .reg .b32 pair; "
            f"lop3.b32 pair, $1, {_INTEGERS:#x}, {_EXPONENT:#x}, 0xea; "
            "sub.rn.bf16x2 $0, pair, $2; }"
        )
        pairs.append(llvm.inline_asm(_i32(), [shifted, less], code, "=r,r,r"))
    return pairs


def _mma(sums: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    code = (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    kind = llvm.StructType.get_literal([ir.F32Type.get()] * 4)
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
    found = llvm.inline_asm(kind, [*a, *b, *sums], code, constraints)
    return [llvm.extractvalue(ir.F32Type.get(), found, [i]) for i in range(4)]


def _pair_of(register: Any) -> Any:
    """A float32 value twice, in bfloat16."""
    value = vector.extract(register, [], [0])
    return llvm.inline_asm(_i32(), [value], "cvt.rn.bf16x2.f32 $0, $1, $1;", "=r,f")


def _words(register: Any) -> list[Any]:
    size = mgpu.utils.bitwidth(register.type) // 32
    words = vector.bitcast(ir.VectorType.get((size,), _i32()), register)
    return [vector.extract(words, [], [i]) for i in range(size)]


def _vector(values: Sequence[Any]) -> Any:
    return vector.from_elements(ir.VectorType.get((len(values),), values[0].type), list(values))


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _word(value: int) -> Any:
    return arith.constant(_i32(), ir.IntegerAttr.get(_i32(), value))


def _float(value: float) -> Any:
    return arith.constant(ir.F32Type.get(), ir.FloatAttr.get_f32(value))
