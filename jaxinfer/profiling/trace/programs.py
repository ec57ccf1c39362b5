"""The part of the model of each instruction in a compiled program's text.

Kernels in a trace bear the name of an instruction. A fused kernel belongs to the part of the
product inside it, or of its root, or else of most of its instructions; an instruction that XLA adds
belongs to the part of its users, or else of its operands.
"""

import collections
import re
from collections.abc import Iterable
from typing import NamedTuple

from jaxinfer.profiling.parts import part_of

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(\S+) = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_RUN_NOTHING = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast")


class _Instruction(NamedTuple):
    name: str
    opcode: str
    rest: str


def read_program(text: str) -> tuple[str, dict[str, str | None]]:
    """The module's name in `Compiled.as_text()`, and each instruction's part by name, or None."""
    bodies = _bodies(text)
    parts = _parts(bodies)
    module = text.split(maxsplit=2)[1].rstrip(",")
    return module, {
        each.name: parts[each.name]
        for body in bodies.values()
        for each in body
        if each.opcode not in _RUN_NOTHING
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


def _inner(each: _Instruction, bodies: dict[str, list[_Instruction]]) -> list[_Instruction]:
    """The instructions inside a fusion."""
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
    """The most frequent part."""
    votes = collections.Counter(filter(None, parts))
    return votes.most_common(1)[0][0] if votes else None


def _own_part(each: _Instruction) -> str | None:
    name = re.search(r'op_name="([^"]*)"', each.rest)
    return part_of(name[1]) if name else None


def _is_product(each: _Instruction) -> bool:
    return each.opcode == "dot" or "__cublas" in each.rest
