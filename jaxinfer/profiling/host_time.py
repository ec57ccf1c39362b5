"""The host's clock: seconds of each step until it is read, and of each part of the host's work."""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.trace.steps import Kind
from jaxinfer.profiling.trace.xplane import Span


class StepTime(NamedTuple):
    """A step by the host's clock.

    Attributes:
        kind: "prefill" or "decode".
        num_steps: 1, or the length of a multi-step decode, which is read as one.
        seconds: from the beginning of its scheduling, or the end of the step before if that is
            later, until its tokens are read; so the device's work for it is within.
        parts: seconds of the host's work for it, all of `HOST_SPANS`; in part during other steps.
    """

    kind: Kind
    num_steps: int
    seconds: float
    parts: dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Steps of a kind by the host's clock: medians.

    Attributes:
        kind: the steps' kind.
        run: "as always", "one step a launch", "without CUDA graphs" or "recorded".
        seconds: of a step, as in `StepTime`, or of each step of a multi-step decode.
        host: seconds a step, by kind of the host's work; medians, which need not add up. Empty if
            unknown.
    """

    kind: Kind
    run: str
    seconds: float
    host: dict[str, float] = dataclasses.field(default_factory=dict)


def step_times(spans: Iterable[Span], launches: Sequence[tuple[Kind, int]]) -> list[StepTime]:
    """The steps that were launched and read during some spans.

    Args:
        spans: of the engine's thread, from a moment when nothing was in flight.
        launches: kind and number of steps of each launch, in their order.
    """
    begins: list[float] = []
    ends: list[float] = []
    parts: list[dict[str, float]] = []
    scheduled: tuple[float, float] | None = None  # begin, seconds; of the next launch
    for span, seconds in own_seconds(spans):
        if span.name == "schedule":
            scheduled = span.start_ns, seconds
            continue
        if span.name == "launch":
            begin, scheduling = scheduled or (span.start_ns, 0.0)
            begins.append(begin)
            parts.append(dict.fromkeys(HOST_SPANS, 0.0) | {"schedule": scheduling})
            scheduled = None
        elif span.name == "fetch":
            ends.append(_end_ns(span))
        index = len(parts) - 1 if span.name in ("launch", "pack") else len(ends) - 1
        if 0 <= index < len(parts) and span.name in HOST_SPANS:
            parts[index][span.name] += seconds
    before = [float("-inf"), *ends]
    return [
        StepTime(*launch, (end - max(begin, earlier)) * 1e-9, each)
        for launch, begin, end, earlier, each in zip(
            launches, begins, ends, before, parts, strict=False
        )
    ]


def timings(steps: Sequence[StepTime], run: str) -> list[Timing]:
    """The median step of each kind; `run` is their name in the report."""
    found = []
    for kind in ("prefill", "decode"):
        own = [step for step in steps if step.kind == kind]
        if own:
            host = {
                name: statistics.median(step.parts[name] / step.num_steps for step in own)
                for name in HOST_SPANS
            }
            seconds = statistics.median(step.seconds / step.num_steps for step in own)
            found.append(Timing(kind=kind, run=run, seconds=seconds, host=host))
    return found


def own_seconds(spans: Iterable[Span]) -> Iterator[tuple[Span, float]]:
    """Each span with its seconds less those of the spans within it, by their beginnings."""
    spans = sorted(spans, key=lambda span: (span.start_ns, -span.duration_ns))
    own = [span.duration_ns for span in spans]
    open_: list[int] = []
    for index, span in enumerate(spans):
        while open_ and _end_ns(spans[open_[-1]]) < _end_ns(span):
            open_.pop()
        if open_:
            own[open_[-1]] -= span.duration_ns
        open_.append(index)
    return ((span, ns * 1e-9) for span, ns in zip(spans, own, strict=True))


def _end_ns(span: Span) -> float:
    return span.start_ns + span.duration_ns
