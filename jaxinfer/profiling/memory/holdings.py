"""The owners of a device's memory: the bytes that each holds in one phase."""

import dataclasses
from typing import Literal, get_args

MemoryOwner = Literal[
    "weights", "KV cache", "slots", "step temporaries", "compile scratch", "other", "outside"
]
OWNERS: tuple[MemoryOwner, ...] = get_args(MemoryOwner)
"""In the order in which tables and pictures show them.

- weights: the parameters.
- KV cache: the pages, whether tokens are in them or not.
- slots: each running sequence's last token, biases, and token counts for penalties.
- step temporaries: memory that the largest step needs beside these while it runs.
- compile scratch: memory that XLA takes for autotuning while it compiles.
- other: in XLA's allocator, but none of these, such as a trainer's arrays.
- outside: on the device, but not in XLA's allocator: CUDA itself, its graphs, NCCL, other programs.
"""
MemorySource = Literal["arrays", "compiler", "measured"]
"""Sizes of arrays that the engine holds, XLA's analysis of a program, or the device's own count."""
PhaseName = Literal["weights loaded", "programs compiled", "KV cache allocated", "generating"]


@dataclasses.dataclass(frozen=True)
class MemoryHolding:
    """The memory that one owner holds in a phase.

    Attributes:
        owner: one of `OWNERS`.
        num_bytes: on each device; the largest device's.
        source: the source of the number.
    """

    owner: MemoryOwner
    num_bytes: int
    source: MemorySource


@dataclasses.dataclass(frozen=True)
class MemoryPhase:
    """A device's memory in one phase, at its fullest.

    Attributes:
        name: the phase.
        holdings: in the order of `OWNERS`; owners that hold nothing, or that the device can't
            report, are left out.
    """

    name: PhaseName
    holdings: tuple[MemoryHolding, ...]

    @property
    def num_bytes(self) -> int:
        """All holdings together."""
        return sum(holding.num_bytes for holding in self.holdings)

    def bytes_of(self, owner: MemoryOwner) -> int:
        """Bytes that an owner holds; 0 if it is left out."""
        return sum(each.num_bytes for each in self.holdings if each.owner == owner)
