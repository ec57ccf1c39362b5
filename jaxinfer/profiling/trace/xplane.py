"""Reads a trace that `jax.profiler` wrote: kernels of the first device, and the host's spans."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxinfer.profiling.parts import SPAN_PREFIX

_GPU = "/device:GPU:"
_HOST = "/host:CPU"
_CONTROL_FLOW = ("while", "call", "conditional")  # what they call has events of its own


class KernelEvent(NamedTuple):
    """One run of a kernel; on a CPU, of an instruction of XLA's.

    Attributes:
        op: the instruction of the program that launched it, or "".
        module: that program's name, or "".
        run: tells runs of programs apart; 0 if the trace does not.
        start_ns: on the trace's clock.
    """

    name: str
    op: str
    module: str
    run: int
    start_ns: float
    duration_ns: float

    @property
    def end_ns(self) -> float:
        """Its end, in nanoseconds on the trace's clock."""
        return self.start_ns + self.duration_ns


class Span(NamedTuple):
    """Something that the host did.

    Attributes:
        name: without `SPAN_PREFIX`.
        start_ns: on the same clock as kernels.
    """

    name: str
    start_ns: float
    duration_ns: float


class Trace(NamedTuple):
    """By starts: kernels of the first GPU or else the CPU, and spans of the engine's thread."""

    kernels: list[KernelEvent]
    spans: list[Span]


def find_trace(directory: Path) -> Path:
    """The newest trace below a directory; ValueError if there is none."""
    files = sorted(directory.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ValueError(f"no trace (*.xplane.pb) in {directory}")
    return files[-1]


def read_trace(file: Path) -> Trace:
    """Read one `*.xplane.pb`."""
    with _quietly():
        host, gpu = _planes(file)
        kernels = _gpu_kernels(gpu) if gpu is not None else _cpu_kernels(host)
        return Trace(
            sorted(kernels, key=lambda event: event.start_ns),
            sorted(_spans(host), key=lambda span: span.start_ns),
        )


def read_gpu_kernels(file: Path) -> list[KernelEvent]:
    """Kernels of the first GPU in one `*.xplane.pb`, perhaps none."""
    with _quietly():
        _, gpu = _planes(file)
        return [] if gpu is None else list(_gpu_kernels(gpu))


def _planes(file: Path) -> tuple[Any, Any]:
    """The host's plane and the first GPU's; None for one that is missing."""
    from jax.profiler import ProfileData

    planes = {plane.name: plane for plane in ProfileData.from_file(str(file)).planes}
    gpu = next((planes[name] for name in sorted(planes) if name.startswith(_GPU)), None)
    return planes.get(_HOST), gpu


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the warning that ProfileData's own types have no module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _gpu_kernels(plane: Any) -> Iterator[KernelEvent]:
    for line in plane.lines:
        if line.name.startswith("Stream"):
            for event in line.events:
                yield _kernel(event, dict(event.stats))


def _cpu_kernels(plane: Any) -> Iterator[KernelEvent]:
    for line in plane.lines if plane is not None else ():
        for event in line.events:
            if event.name.startswith(("end: ", *_CONTROL_FLOW)):
                continue
            stats = dict(event.stats)
            if stats.get("hlo_op") == event.name:
                yield _kernel(event, stats)


def _kernel(event: Any, stats: dict[str, Any]) -> KernelEvent:
    op, module = str(stats.get("hlo_op", "")), str(stats.get("hlo_module", "")).partition("(")[0]
    run = int(stats.get("run_id", 0))
    return KernelEvent(event.name, op, module, run, event.start_ns, event.duration_ns)


def _spans(plane: Any) -> Iterator[Span]:
    for line in plane.lines if plane is not None else ():
        for event in line.events:
            if event.name.startswith(SPAN_PREFIX):
                name = event.name.removeprefix(SPAN_PREFIX).partition("#")[0]
                yield Span(name, event.start_ns, event.duration_ns)
