"""What a compiled GPU program consists of, read from its optimized HLO: kernels, copies, sums.

Nothing here runs a program: one launch an instruction is XLA's rule, and the counts were the same
as in a profile of the device.
"""

import collections
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# These start nothing on the device, and the second half of a pair only waits.
_FREE = {
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
    "while",  # its body counts
}
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
_COPIES = ("copy", "copy-start", "transpose")

# `%name = shape opcode(`, where the shape of a tuple is in parentheses and holds no call.
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = (\(.*?\)|\S+) ([a-z][\w\-]*)\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_CALLED = re.compile(r"(?:body|to_apply|called_computations|branch_computations)=\{?([^\s,}]+)")


class Instruction(NamedTuple):
    """One line of a program.

    Attributes:
        shape: of the result, in HLO's words.
        opcode: what it does.
        line: all of it.
    """

    shape: str
    opcode: str
    line: str

    @property
    def name(self) -> str:
        """What other lines call it."""
        return self.line.split("%", 1)[1].split(" ", 1)[0]

    @property
    def operand(self) -> str:
        """Name of the first operand."""
        return re.split(r"[,)]", self.line.split(f" {self.opcode}(%", 1)[1])[0]

    @property
    def num_elements(self) -> int:
        """Of the largest array in the result."""
        sizes = re.findall(r"\w+\[([\d,]*)\]", self.shape)
        return max((math.prod(map(int, filter(None, s.split(",")))) for s in sizes), default=0)


def launches(text: str) -> int:
    """Kernels (and memory copies) that one run of a program launches; a loop's body counts once."""
    return sum(not _is_free(instruction.opcode) for instruction in scheduled(text))


def mosaic_kernels(text: str) -> collections.Counter[str]:
    """How often each Mosaic GPU kernel is launched, by the name that it was given."""
    calls = [i.line for i in scheduled(text) if 'custom_call_target="mosaic_gpu' in i.line]
    return collections.Counter(re.findall(r'op_name="(?:[^"]*/)?(\w+)/\w+"', "\n".join(calls)))


def collectives(text: str) -> collections.Counter[str]:
    """How often each kind of exchange between devices happens; a loop's body counts once."""
    opcodes = [instruction.opcode.removesuffix("-start") for instruction in scheduled(text)]
    return collections.Counter(opcode for opcode in opcodes if opcode in _COLLECTIVES)


def beside_sums(text: str) -> list[list[Instruction]]:
    """What is scheduled between the start and the end of each exchange of the entry, in order."""
    running: dict[str, list[Instruction]] = {}
    found = []
    entry, computations = _computations(text)
    for instruction in computations[entry]:
        kind, _, half = instruction.opcode.rpartition("-")
        if kind in _COLLECTIVES and half == "done":
            running.pop(instruction.operand)
        for beside in running.values():
            beside.append(instruction)
        if instruction.opcode in _COLLECTIVES or (kind in _COLLECTIVES and half == "start"):
            found.append([])
        if kind in _COLLECTIVES and half == "start":
            running[instruction.name] = found[-1]
    return found


def is_product(instruction: Instruction) -> bool:
    """Whether it is a call of cuBLAS or a fusion made for a matrix product."""
    return "__cublas" in instruction.line or "__triton_gemm" in instruction.line


def copies(text: str, num_elements: int) -> list[str]:
    """Copies of arrays of at least this many elements, also inside fusions."""
    instructions = [i for body in _computations(text)[1].values() for i in body]
    return [
        f"{i.opcode} {i.shape}"
        for i in instructions
        if i.opcode in _COPIES and i.num_elements >= num_elements
    ]


def aliases(text: str) -> dict[int, int]:
    """By the index of each result that takes a parameter's memory, the parameter's index."""
    header = text.splitlines()[0].partition("input_output_alias=")[2].partition(" }")[0]
    found = re.findall(r"\{(\d*)\}: \((\d+), \{\}", header)
    return {int(result or 0): int(parameter) for result, parameter in found}


def _is_free(opcode: str) -> bool:
    return opcode in _FREE or opcode.endswith("-done")


def scheduled(text: str) -> Iterator[Instruction]:
    """The instructions of the program and of its callees, without the insides of fusions."""
    entry, computations = _computations(text)
    waiting, seen = [entry], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for instruction in computations[name]:
            yield instruction
            if instruction.opcode in ("while", "call", "conditional"):
                called = _CALLED.findall(instruction.line)
                waiting += [c.lstrip("%") for c in called if c.lstrip("%") in computations]


def _computations(text: str) -> tuple[str, dict[str, list[Instruction]]]:
    """The name of the entry, and the instructions of each computation."""
    entry, current = "", ""
    found: dict[str, list[Instruction]] = {}
    for line in text.splitlines():
        if opened := _COMPUTATION.match(line):
            current = opened[2]
            found[current] = []
            entry = current if opened[1] else entry
        elif instruction := _INSTRUCTION.match(line):
            found[current].append(Instruction(instruction[1], instruction[2], line))
    if not entry:
        raise ValueError("no ENTRY computation: is this optimized HLO?")
    return entry, found
