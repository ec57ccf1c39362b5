"""The plan of an engine: its shapes and programs, decided before its KV cache is allocated."""

from dataclasses import dataclass

from jaxinfer.profiling.memory.phases import MemoryMark
from jaxinfer.serving.compile.compilation import CompilationCounter, CompiledPrograms
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.runner.host_inputs import HostInputs
from jaxinfer.serving.runner.pipeline.staged_host_inputs import StagedHostInputs
from jaxinfer.startup_report import StartupReport


@dataclass(frozen=True)
class EnginePlan:
    """The plan of an engine.

    Attributes:
        platform: platform of the devices: "cpu", "gpu".
        buckets: the shapes of its steps.
        compiled: compiles them; has the programs that the memory was measured with.
        counter: counts XLA's compilations since planning began.
        memory_mark: the devices' memory before planning, with the weights loaded.
        slot_bytes: bytes of running sequences' state, on each device.
        host_inputs: where steps read their batches from.
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
    host_inputs: HostInputs | StagedHostInputs

    def close(self) -> None:
        """Stop compiling and counting."""
        self.compiled.close()
        self.lowering.close()
        self.counter.close()
