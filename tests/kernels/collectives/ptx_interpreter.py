"""Runs the few PTX instructions of exchanges between GPUs on the host, for one thread of a GPU."""

import functools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from jaxinfer.kernels.mosaic.ptx import Word

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "lt": lambda a, b: a < b,
}
_COMPUTE: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "rem": lambda a, b: a % b,
}


class HostWord(Word):
    """A `Word` whose value is known."""

    def __add__(self, other: Word | int) -> Word:
        return HostWord(self.value + _value(other))

    def __mul__(self, other: int) -> Word:
        return HostWord(self.value * other)


class Host:
    """Memory that all GPUs share, and a clock; takes the place of `ptx` in `peer_buffer.py`.

    Attributes:
        memory: 32-bit words by address.
        clock: nanoseconds at each look.
    """

    def __init__(self, clock: Callable[[], int] = lambda: 1) -> None:
        self.memory: dict[int, int] = defaultdict(int)
        self.clock = clock

    def asm(
        self, code: str, constraints: str, operands: Sequence[Word | int], num_results: int = 0
    ) -> list[int]:
        """As `ptx.asm`; other Python threads may run between any two looks at memory."""
        values = map(_value, operands)
        registers = {f"${num_results + i}": value for i, value in enumerate(values)}
        lines = _lines(code)
        labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
        at = 0
        while at < len(lines):
            target = self._run(lines[at], registers)
            at = labels[target] if target else at + 1
        return [registers[f"${i}"] for i in range(num_results)]

    def constant(self, value: int, bits: int) -> int:
        return value

    def thread(self) -> int:
        return 0

    def warpgroup_barrier(self) -> None:
        pass

    def word_of(self, value: int) -> int:
        return value

    def widened(self, value: int) -> Word:
        return HostWord(value)

    def address(self, low: int, high: int) -> Word:
        return HostWord(low | high << 32)

    def _run(self, line: str, registers: dict[str, int]) -> str | None:
        """Run one instruction; the label that it jumps to, if it does."""
        if line.endswith(":") or line.startswith(".reg"):
            return None
        guard, negated, kind, details, to, sources = _parsed(line)
        if guard and bool(registers[guard]) == negated:
            return None
        if kind == "bra":
            return to
        width = int(details[-1][1:])
        if kind in ("ld", "st"):
            place, values = (sources[0], to) if kind == "ld" else (to, sources[0])
            self._move(kind, registers[place.strip("[] ")], _names(values), width, registers)
        elif kind == "setp":
            a, b = (self._value(source, registers) for source in sources)
            if details[-1].startswith("s"):
                a, b = (value - (value >> width - 1 << width) for value in (a, b))
            registers[to] = _COMPARE[details[0]](a, b)
        elif kind == "mov":
            self._assign(_names(to), self._joined(sources[0], registers), registers)
        else:
            a, b = (self._value(source, registers) for source in sources)
            registers[to] = _COMPUTE[kind](a, b) % 2**width
        return None

    def _move(
        self, kind: str, address: int, names: list[str], width: int, registers: dict[str, int]
    ) -> None:
        time.sleep(0)
        words = width // 32
        for i, name in enumerate(names):
            places = [address + 4 * (i * words + word) for word in range(words)]
            if kind == "ld":
                whole = sum(self.memory[place] << 32 * k for k, place in enumerate(places))
                registers[name] = whole
            else:
                for k, place in enumerate(places):
                    self.memory[place] = registers[name] >> 32 * k & 0xFFFFFFFF

    def _value(self, source: str, registers: dict[str, int]) -> int:
        if source == "%globaltimer":
            return self.clock()
        return int(source) if source.isdigit() else registers[source]

    def _joined(self, source: str, registers: dict[str, int]) -> int:
        values = [self._value(name, registers) for name in _names(source)]
        return sum(value << 32 * i for i, value in enumerate(values))

    def _assign(self, names: list[str], value: int, registers: dict[str, int]) -> None:
        for i, name in enumerate(names):
            registers[name] = value >> 32 * i & 0xFFFFFFFF if len(names) > 1 else value


def _value(number: Word | int) -> int:
    return number.value if isinstance(number, Word) else number


@functools.cache
def _names(group: str) -> list[str]:
    return re.findall(r"[\w$%]+", group)


@functools.cache
def _parsed(line: str) -> tuple[str, bool, str, list[str], str, list[str]]:
    """Guard, whether it is negated, instruction, its details, what it changes, what it reads."""
    found = re.match(r"(?:@(!?)(\w+)\s+)?(\S+)\s+(.*)", line)
    if found is None:
        raise ValueError(f"not an instruction: {line!r}")
    negated, guard, name, arguments = found.groups()
    kind, *details = name.split(".")
    to, *sources = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", arguments)
    return guard or "", negated == "!", kind, details, to, sources


@functools.cache
def _lines(code: str) -> list[str]:
    """One instruction or label each; the braces around all of it are a scope, nothing else."""
    code = code.strip()
    if code.startswith("{"):
        code = code[1 : code.rindex("}")]
    parts = re.sub(r"(\w+:)", r"\1;", code).split(";")
    return [part.strip() for part in parts if part.strip()]
