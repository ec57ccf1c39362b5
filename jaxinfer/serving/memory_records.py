"""Reports and records what holds the memory of an engine's devices."""

import contextlib
from collections.abc import Iterator

from jaxinfer.profiling.memory.recording import MemoryRecording
from jaxinfer.profiling.memory.report import MemoryReport
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.recording.memory_recorder import MemoryRecorder, memory_report


class MemoryRecords:
    """What `LLM.memory` is.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def report(self) -> MemoryReport:
        """What holds the devices' memory, from the weights' loading until now, and its peak.

        Of several replicas it is the first one's devices, of several processes process 0's.

        Raises:
            RuntimeError: the LLM is closed.
        """
        driver, runner = self._handle.driver, self._handle.loaded.replicas[0].runner
        return driver.call(lambda: memory_report(runner, driver.pauses.asleep))

    @contextlib.contextmanager
    def record(self) -> Iterator[MemoryRecording]:
        """Sample at every step what the devices' memory holds, until the block ends.

        >>> with llm.record_memory() as recording:                          # doctest: +SKIP
        ...     llm.generate(prompts)
        >>> print(recording)                                                # doctest: +SKIP

        Of several replicas the first is recorded. A sample costs the engine's thread some
        microseconds; steps compute the same.

        Raises:
            RuntimeError: memory or a profile is being recorded already, or the LLM is closed.
        """
        handle = self._handle
        driver, started = handle.driver, handle.loaded.replicas[0]

        def begin() -> MemoryRecorder:
            handle.recording.begin("memory", "leave its record_memory() block")
            try:
                return MemoryRecorder(started)
            except BaseException:
                handle.recording.end()
                raise

        def end() -> None:
            handle.recording.end()
            recorder.close()

        recorder = driver.call(begin)
        try:
            yield recorder.recording
        finally:
            if not handle.is_closed:
                driver.call(end)
