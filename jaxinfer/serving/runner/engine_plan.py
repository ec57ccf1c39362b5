"""The plan of an engine: its shapes and programs, decided before its KV cache is allocated."""

from dataclasses import dataclass

from jaxinfer.profiling.memory.phases import MemoryMark
from jaxinfer.serving.compile.compilation import CompilationCounter, CompiledPrograms
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.startup_report import StartupReport


@dataclass(frozen=True)
class EnginePlan:
    """The plan of an engine.

    Attributes:
        platform: of the devices: "cpu", "gpu".
        buckets: the shapes of its steps.
        programs: lowers them.
        compiled: compiles them; holds what the memory was measured with.
        lowering: what lowers them for it.
        counter: what XLA has built since planning began.
        report: what to tell the user.
        seconds: how long planning took.
        memory_mark: what the devices said before it, with the weights on them.
        slot_bytes: what is kept of running sequences, on each device.
    """

    platform: str
    buckets: Buckets
    programs: Programs
    compiled: CompiledPrograms[ProgramKey]
    lowering: Lowering
    counter: CompilationCounter
    report: StartupReport
    seconds: float
    memory_mark: MemoryMark
    slot_bytes: int

    def close(self) -> None:
        """Stop compiling and counting."""
        self.compiled.close()
        self.lowering.close()
        self.counter.close()
