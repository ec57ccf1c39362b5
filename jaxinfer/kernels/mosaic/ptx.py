"""PTX instructions that Pallas does not offer, for use inside `plgpu.inline_mgpu`.

Values here are MLIR's: one thread's, not arrays.
"""

from __future__ import annotations

from typing import Any

from jax.experimental.mosaic import gpu as mgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, gpu, llvm, memref, vector


class Word:
    """A 64-bit number known when the kernel runs, with the arithmetic that offsets need."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __add__(self, other: Word | int) -> Word:
        return Word(arith.addi(self.value, _value(other)))

    def __mul__(self, other: int) -> Word:
        return Word(arith.muli(self.value, _value(other)))


def _value(number: Word | int) -> Any:
    return number.value if isinstance(number, Word) else constant(number, 64)


def widened(value: Any) -> Word:
    """Widen a non-negative 32-bit number to 64 bits."""
    return Word(arith.extui(ir.IntegerType.get_signless(64), value))


def constant(value: int, bits: int) -> Any:
    """The integer type of a given number of bits."""
    return arith.constant(ir.IntegerType.get_signless(bits), value)


def thread() -> Any:
    """This thread's number in its block, 32 bits."""
    word = ir.IntegerType.get_signless(32)
    return arith.index_castui(word, gpu.thread_id(gpu.Dimension.x))


def warpgroup_barrier() -> None:
    """Wait for all threads of the warpgroup."""
    mgpu.warpgroup_barrier()


def load_element(table: Any, row: int, column: int) -> Any:
    """An element of an int32 reference to a matrix."""
    at = [arith.constant(ir.IndexType.get(), index) for index in (row, column)]
    return memref.load(table, at)


def address(low: Any, high: Any) -> Word:
    """An address from its low and high half."""
    low, high = (arith.extui(ir.IntegerType.get_signless(64), half) for half in (low, high))
    return Word(arith.ori(low, arith.shli(high, constant(32, 64))))


def word_of(scalar: Any) -> Any:
    """The 32-bit value of a scalar operand of `plgpu.inline_mgpu`."""
    return scalar.registers.item()


def scalar(word: Any) -> mgpu.FragmentedArray:
    """A 32-bit value, the same for all threads, as `plgpu.inline_mgpu` returns it."""
    return mgpu.FragmentedArray.splat(word, (), is_signed=True)


def words_of(register: Any) -> list[Any]:
    """The four 32-bit words of a 16-byte vector."""
    whole = vector.bitcast(_quad(), register)
    return [llvm.extractelement(whole, constant(i, 32)) for i in range(4)]


def vector_of(words: list[Any], kind: Any) -> Any:
    """A 16-byte vector of type `kind` from its four words."""
    whole = llvm.mlir_undef(_quad())
    for i, word in enumerate(words):
        whole = llvm.insertelement(whole, word, constant(i, 32))
    return vector.bitcast(kind, whole)


def asm(code: str, constraints: str, operands: list[Any], num_results: int = 0) -> list[Any]:
    """Run instructions, in the order in which they are written as far as memory is concerned.

    Args:
        code: PTX, with results and operands as $0, $1, ...
        constraints: LLVM's, for instance "=r,l" for a 32-bit result and a 64-bit operand.
        operands: `Word`s or 32-bit values.
        num_results: 32-bit values that are returned.
    """
    word = ir.IntegerType.get_signless(32)
    kind = None
    if num_results == 1:
        kind = word
    elif num_results:
        kind = llvm.StructType.get_literal([word] * num_results)
    values = [operand.value if isinstance(operand, Word) else operand for operand in operands]
    constraints += ",~{memory}"
    result = llvm.inline_asm(kind, values, code, constraints, has_side_effects=True)
    if num_results < 2:
        return [result]
    return [llvm.extractvalue(word, result, [i]) for i in range(num_results)]


def _quad() -> Any:
    return ir.VectorType.get((4,), ir.IntegerType.get_signless(32))
