"""A compiled program's text as a table: of each instruction its part, bytes and operations.

Kernels in a trace bear the name of an instruction. Fused kernels have the part of the product that
they hold, or of their root, or else of most of what they hold; instructions that XLA adds have the
part of what reads them, or else of what they read.
"""

import collections
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from jaxinfer.profiling.parts import part_of

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(\S+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_ARRAY = re.compile(r"(\w+?)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_BITS = re.compile(r"[a-z]+(\d+)")
_CONTRACTED = re.compile(r"lhs_contracting_dim(?:s=\{|ensions\":\[\")([\d,]*)")
_SCRATCH = re.compile(r"(, s8\[\d+\]\S*)\)$")  # the last result of a call of cuBLAS
# Of these a kernel reads and writes parts of an operand only, by indices.
_INDEXED = ("gather", "scatter", "dynamic-slice", "dynamic-update-slice", "custom-call")


class Kernel(NamedTuple):
    """What is known of an instruction that a device runs.

    Attributes:
        part: of `PARTS`, or None.
        num_bytes: of operands and results, scratch space excluded; None where only parts of them
            are touched.
        flops: of matrix products, 2 for each product and addition; 0 without any, None if unknown.
    """

    part: str | None
    num_bytes: int | None
    flops: int | None


class _Instruction(NamedTuple):
    name: str
    shape: str
    opcode: str
    rest: str


def read_program(text: str) -> tuple[str, dict[str, Kernel]]:
    """The module's name and its instructions, by name.

    Args:
        text: `jax.stages.Compiled.as_text()`.
    """
    bodies = _bodies(text)
    shapes = {each.name: each.shape for body in bodies.values() for each in body}
    parts = _parts(bodies)
    module = text.split(maxsplit=2)[1].rstrip(",")
    return module, {
        each.name: _kernel(each, parts[each.name], bodies, shapes)
        for body in bodies.values()
        for each in body
        if each.opcode not in ("parameter", "constant", "get-tuple-element", "tuple", "bitcast")
    }


def _bodies(text: str) -> dict[str, list[_Instruction]]:
    bodies: dict[str, list[_Instruction]] = {}
    body: list[_Instruction] = []
    for line in text.splitlines():
        if start := _COMPUTATION.match(line):
            body = bodies.setdefault(start[1], [])
        elif found := _INSTRUCTION.match(line):
            body.append(_Instruction(*found.groups()))
    return bodies


def _kernel(
    each: _Instruction,
    part: str | None,
    bodies: dict[str, list[_Instruction]],
    shapes: dict[str, str],
) -> Kernel:
    inner = _inner(each, bodies)
    touched = None
    if not any(i.opcode in _INDEXED and not _is_product(i) for i in (each, *inner)):
        result = _SCRATCH.sub(")", each.shape) if "__cublas" in each.rest else each.shape
        operands = (shapes.get(name, "") for name in _operands(each))
        touched = sum(map(_bytes, (result, *operands)))
    flops = sum(_product_flops(i, shapes) for i in (each, *inner))
    unknown = each.opcode == "custom-call" and not flops
    return Kernel(part, touched, None if unknown else flops)


def _inner(each: _Instruction, bodies: dict[str, list[_Instruction]]) -> list[_Instruction]:
    """What a fusion holds."""
    called = re.search(r"calls=%?([\w.\-]+)", each.rest)
    return bodies.get(called[1], []) if called else []


def _operands(each: _Instruction) -> list[str]:
    return _OPERAND.findall(each.rest.partition(")")[0])


def _parts(bodies: dict[str, list[_Instruction]]) -> dict[str, str | None]:
    """The part of every instruction, or None."""
    parts: dict[str, str | None] = {}
    nameless: list[_Instruction] = []
    readers: dict[str, list[str]] = collections.defaultdict(list)
    for each in (each for body in bodies.values() for each in body):
        inner = _inner(each, bodies)
        products = _most(_own_part(i) for i in inner if _is_product(i))
        parts[each.name] = products or _own_part(each) or _most(map(_own_part, inner))
        if parts[each.name] is None and "op_name" not in each.rest:
            nameless.append(each)
        for operand in _operands(each):
            readers[operand].append(each.name)
    for each in [*reversed(nameless), *nameless]:  # chains of them, backwards and forwards
        if parts[each.name] is None:
            near = _most(parts.get(name) for name in readers[each.name])
            parts[each.name] = near or _most(parts.get(name) for name in _operands(each))
    return parts


def _most(parts: Iterable[str | None]) -> str | None:
    """The part that is there most often."""
    votes = collections.Counter(filter(None, parts))
    return votes.most_common(1)[0][0] if votes else None


def _own_part(each: _Instruction) -> str | None:
    name = re.search(r'op_name="([^"]*)"', each.rest)
    return part_of(name[1]) if name else None


def _is_product(each: _Instruction) -> bool:
    return each.opcode == "dot" or "__cublas" in each.rest


def _product_flops(each: _Instruction, shapes: dict[str, str]) -> int:
    """Of a dot or a call of cuBLAS, whose operands' shapes are known."""
    contracted = _CONTRACTED.search(each.rest)
    operands = _operands(each)
    if not _is_product(each) or contracted is None or not operands:
        return 0
    left = _dimensions(shapes.get(operands[0], ""))
    depth = math.prod(left[int(i)] for i in contracted[1].split(",") if i and int(i) < len(left))
    return 2 * math.prod(_dimensions(each.shape)) * depth


def _dimensions(shape: str) -> list[int]:
    """Of the first array in a shape."""
    found = _ARRAY.search(shape)
    return [int(size) for size in found[2].split(",") if size] if found else []


def _bytes(shape: str) -> int:
    """Of all arrays in a shape."""
    total = 0
    for dtype, sizes in _ARRAY.findall(shape):
        bits = _BITS.match(dtype)
        width = int(bits[1]) // 8 if bits else 1  # pred is a byte
        total += width * math.prod(int(size) for size in sizes.split(",") if size)
    return total
