"""The device memory of a runner's arrays and programs."""

from collections.abc import Sequence
from typing import Any

from jaxinfer.profiling.memory.holdings import PhaseName
from jaxinfer.profiling.memory.memory_marks import memory_mark
from jaxinfer.profiling.memory.phases import HeldBytes, MemoryMark
from jaxinfer.serving.compile.program_bytes import program_bytes
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.runner.engine_plan import EnginePlan


class RunnerMemory:
    """The memory of an engine's devices, in bytes of one of them; any thread may ask.

    Attributes:
        marks: the devices' memory after each phase of the engine's start.
        block_bytes: of a KV block, over all layers.
    """

    def __init__(self, plan: EnginePlan, devices: Sequence[Any]) -> None:
        self.devices = devices
        self.marks: list[MemoryMark] = [plan.memory_mark]
        self.block_bytes = plan.programs.cache.block_bytes
        self._plan = plan

    def mark(self, phase: PhaseName) -> None:
        """Record the devices' memory at the end of a phase; a repeated phase is ignored."""
        if all(mark.phase != phase for mark in self.marks):
            self.marks.append(memory_mark(phase, self.devices))

    @property
    def held(self) -> HeldBytes:
        """The bytes that the engine holds while no part of it sleeps."""
        largest = self.largest_program()
        return HeldBytes(
            weights=self._plan.report.weight_bytes,
            kv_cache=self._plan.report.kv_bytes,
            slots=self._plan.slot_bytes,
            step=None if largest is None else program_bytes(self._plan.compiled[largest]),
        )

    def largest_program(self) -> ProgramKey | None:
        """The compiled program with the most temporaries; None if none is compiled yet."""
        compiled = dict(self._plan.compiled)
        return max(compiled, key=lambda key: program_bytes(compiled[key]), default=None)
