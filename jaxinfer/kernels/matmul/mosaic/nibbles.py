"""Products of integers of four bits with up to 16 rows, by the tensor cores' older instruction.

`mma.sync` takes 16 output features, an operand of one warp, where wgmma takes 64 of four warps.
So nothing is awaited between widening and multiplying. A thread multiplies the integers that it
loads: the order of a contraction is free where both operands have the same one. The 8 inputs of a
word of codes are widened in pairs, which `paired` makes the order of the activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, vector

from jaxinfer.kernels.matmul.weight_form import GROUP, TILE
from jaxinfer.kernels.mosaic.pages import Ref
from jaxinfer.kernels.mosaic.rows import row_layout

PAIRS = (0, 4, 1, 5, 2, 6, 3, 7)
"""The integers of a word in the order in which they are widened, two by one instruction."""

_SUMS = plgpu.Layout.WGMMA
_FEATURES = _SUMS.reduce(1)
# Of each half of [TILE, 64] bytes a thread has two words of a feature and of the eighth next.
_CODES = plgpu.Layout.TILED(
    plgpu.Tiling(((64, 32), (16, 32), (8, 32), (8,))),
    warp_dims=(-7,),
    lane_dims=(-3, -2),
    vector_dim=-1,
)
# Of [N, GROUP] activations, the same inputs of one row in eight.
_ACTIVATIONS = plgpu.Layout.TILED(
    plgpu.Tiling(((8, 64), (8, 16), (8,))),
    warp_dims=(plgpu.Replicated(4),),
    lane_dims=(-3, -4),
    vector_dim=-1,
)
_INTEGERS = 0x000F000F  # the lowest of each half of a word
_EXPONENT = 0x43004300  # 128 twice in bfloat16, whose last four bits are an integer's
_OFFSET = 0x43084308  # 128 + 8 twice


def paired(values: jax.Array) -> jax.Array:
    """Activations ``[N, GROUP]`` in bfloat16, every 8 inputs in the order of `PAIRS`."""
    return _shuffled(values.shape[0])(values)


def _shuffled(rows: int) -> Any:
    layout = row_layout(8, GROUP)
    result = plgpu.ShapeDtypeStruct((rows, GROUP), jnp.dtype(jnp.bfloat16), layout=layout)

    @plgpu.inline_mgpu(arg_types=(layout,), return_type=result)
    def shuffle(_: Any, given: Any) -> Any:
        registers = np.empty_like(given.registers)
        for index, register in np.ndenumerate(given.registers):
            registers[index] = vector.shuffle(register, register, PAIRS)
        return mgpu.FragmentedArray(
            _registers=registers, _layout=given.layout, _is_signed=given.is_signed
        )

    return shuffle


def multiplied(codes: Sequence[Ref], x: Ref, zeros: Sequence[Ref]) -> list[jax.Array]:
    """Sums ``[TILE, N]`` of tiles of integers, less 8 or their zero points, times rows.

    Args:
        codes: uint8 ``[TILE, GROUP / 2]`` each, in shared memory, of two integers each.
        x: bfloat16 ``[N, GROUP]``, in shared memory, as of `paired`.
        zeros: nothing, or for each tile float32 ``[TILE]`` in shared memory: zero points less 8.
    """
    words = [plgpu.load(tile, layout=_CODES, optimized=False) for tile in codes]
    rows = plgpu.load(x, layout=_ACTIVATIONS, optimized=False)
    given = [plgpu.load(values, layout=_FEATURES, optimized=False) for values in zeros]
    return _products(x.shape[0], len(words), len(given))(rows, *words, *given)


def _products(columns: int, matrices: int, zeros: int) -> Any:
    result = plgpu.ShapeDtypeStruct((TILE, columns), jnp.dtype(jnp.float32), layout=_SUMS)
    types = (_ACTIVATIONS, *[_CODES] * matrices, *[_FEATURES] * zeros)

    @plgpu.inline_mgpu(arg_types=types, return_type=[result] * matrices)
    def products(_: Any, x: Any, *given: Any) -> Any:
        tiles = [each.registers.reshape(2, 2) for each in given[:matrices]]
        less = [[_word(_OFFSET)] * 2 for _ in tiles]
        for matrix, values in enumerate(given[matrices:]):
            less[matrix] = [_offset(register) for register in values.registers.flat]
        blocks = x.registers.reshape(columns // 8, 2, 2)
        sums = [[[_zero()] * 4 for _ in blocks] for _ in tiles]
        # Half of the inputs after the other, so that no more of the rows need be in registers.
        for half in range(2):
            for matrix, tile in enumerate(tiles):
                for index, pair in enumerate(zip(*map(_words, tile[half]), strict=True)):
                    wide = [_widened(*each) for each in zip(pair, less[matrix], strict=True)]
                    for n, block in enumerate(blocks):
                        row = _words(block[half, index])
                        sums[matrix][n] = _add_word(sums[matrix][n], wide, row)
        return [_fragmented(each, columns) for each in sums]

    return products


def _add_word(sums: list[Any], wide: Sequence[Any], row: Sequence[Any]) -> list[Any]:
    """`sums` and the products of eight inputs of two features and a row, in four words each."""
    first, second = wide
    for i in (0, 2):
        sums = _mma(sums, (first[i], second[i], first[i + 1], second[i + 1]), row[i : i + 2])
    return sums


def _widened(word: Any, less: Any) -> list[Any]:
    """The four pairs of a word's integers in bfloat16, less an offset."""
    code = (
        "{ .reg .b32 pair; "
        f"lop3.b32 pair, $1, {_INTEGERS:#x}, {_EXPONENT:#x}, 0xea; "  # (a & b) | c
        "sub.rn.bf16x2 $0, pair, $2; }"
    )
    shifted = [word, *(arith.shrui(word, _word(4 * index)) for index in (1, 2, 3))]
    return [llvm.inline_asm(_i32(), [each, less], code, "=r,r,r") for each in shifted]


def _offset(register: Any) -> Any:
    """128 and a zero point twice, in bfloat16, of one less 8."""
    values = vector.extract(register, [], [0])
    code = "{ .reg .f32 sum; add.f32 sum, $1, 0f43080000; cvt.rn.bf16x2.f32 $0, sum, sum; }"
    return llvm.inline_asm(_i32(), [values], code, "=r,f")


def _mma(sums: Sequence[Any], a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """`sums`, of 16 features and 8 rows, and the products of 16 inputs."""
    code = (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
    )
    kind = llvm.StructType.get_literal([ir.F32Type.get()] * 4)
    constraints = "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f"
    found = llvm.inline_asm(kind, [*a, *b, *sums], code, constraints)
    return [llvm.extractvalue(ir.F32Type.get(), found, [i]) for i in range(4)]


def _fragmented(sums: Sequence[Sequence[Any]], columns: int) -> Any:
    """Sums of every eight rows, four of a thread, in wgmma's layout."""
    pair, layout = ir.VectorType.get((2,), ir.F32Type.get()), _SUMS.to_mgpu()
    found = [vector.from_elements(pair, total[at : at + 2]) for total in sums for at in (0, 2)]
    registers = np.empty(len(found), object)
    registers[:] = found
    registers = registers.reshape(layout.registers_shape((TILE, columns)))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


def _words(register: Any) -> list[Any]:
    """The 32-bit words of a thread's values."""
    size = mgpu.utils.bitwidth(register.type) // 32
    words = vector.bitcast(ir.VectorType.get((size,), _i32()), register)
    return [vector.extract(words, [], [i]) for i in range(size)]


def _i32() -> Any:
    return ir.IntegerType.get_signless(32)


def _word(value: int) -> Any:
    return arith.constant(_i32(), ir.IntegerAttr.get(_i32(), value))


def _zero() -> Any:
    return arith.constant(ir.F32Type.get(), ir.FloatAttr.get_f32(0.0))
