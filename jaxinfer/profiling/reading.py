"""Reads a profile's directory (traces, programs, facts of the engine) into a report."""

import collections
import dataclasses
import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxinfer.planning.shapes import ModelShape
from jaxinfer.profiling.costs import NOTHING, Cost, step_costs
from jaxinfer.profiling.device_steps import DeviceStep, PartEvent, Programs, device_steps
from jaxinfer.profiling.files import RECORDING, cycle_directory
from jaxinfer.profiling.host_time import StepTime, Timing, step_times, timings
from jaxinfer.profiling.parts import OTHER, PARTS
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.rows import DATA_SHEET, Peak, StepRow, WorkRow
from jaxinfer.profiling.trace.steps import Kind, StepFacts
from jaxinfer.profiling.trace.xplane import Span, find_trace, read_trace

_KINDS: tuple[Kind, ...] = ("prefill", "decode")
_NUMBER = re.compile(r"([._]\d+)+$")  # XLA numbers the copies of a kernel


class Recording(NamedTuple):
    """The contents of a profile's recording.

    Attributes:
        facts: of the engine, as `make_report` takes them.
        steps: as the device ran them.
        spans: of the host in each repetition.
        hosts: the steps as the host saw them.
        programs: the programs that the steps launched.
    """

    facts: dict[str, Any]
    steps: list[DeviceStep]
    spans: list[list[Span]]
    hosts: list[StepTime]
    programs: Programs


def read_report(directory: str | Path, **facts: Any) -> ProfileReport:
    """The report of a profile's recording; `facts` replace those of the engine in it.

    Raises:
        ValueError: there is no recording, or no step was recorded.
    """
    recording = read_recording(directory)
    return make_report(
        recording.facts | facts, recording.steps, recording.hosts, recording.programs
    )


def read_recording(directory: str | Path) -> Recording:
    """Read the traces in a profile's directory; arguments and errors as for `read_report`."""
    directory = Path(directory)
    file = directory / RECORDING
    if not file.is_file():
        raise ValueError(f"no profile in {directory}: {RECORDING} is missing")
    facts = json.loads(file.read_text())
    programs = {key: (module, parts) for key, (module, parts) in facts["programs"].items()}
    recording = Recording(facts, [], [], [], programs)
    for index, cycle in enumerate(facts["cycles"]):
        if cycle:
            trace = read_trace(find_trace(cycle_directory(directory, index)))
            launched = [StepFacts.from_dict(each) for each in cycle]
            recording.steps.extend(device_steps(launched, trace.kernels, programs))
            recording.spans.append(trace.spans)
            recording.hosts.extend(
                step_times(trace.spans, [(each.kind, each.num_steps) for each in launched])
            )
    if not recording.steps:
        raise ValueError(
            f"no step was recorded in {directory}: fewer steps ran than the schedule waits for, or "
            "the trace holds no kernels"
        )
    return recording


def make_report(
    recording: dict[str, Any],
    steps: Sequence[DeviceStep],
    hosts: Sequence[StepTime],
    programs: Programs,
) -> ProfileReport:
    """Build the report of recorded steps.

    Args:
        recording: the engine's facts: "title", "model", "dtype", "device", "platform",
            "num_devices", "peak", and perhaps "kv_cache_dtype", "notes", and "timings" of the same
            steps unrecorded.
    """
    peak = None if recording.get("peak") is None else Peak(**recording["peak"])
    shape = ModelShape.from_values(recording["model"])
    by_kind: dict[Kind, list[DeviceStep]] = {
        kind: [s for s in steps if s.facts.kind == kind] for kind in _KINDS
    }
    parts: list[WorkRow] = []
    kernels: list[WorkRow] = []
    for kind, own in by_kind.items():
        if own:
            cache = recording.get("kv_cache_dtype", "auto")
            costs = [
                step_costs(shape, recording["dtype"], s.facts, recording["num_devices"], cache)
                for s in own
            ]
            parts += _part_rows(kind, own, costs, peak)
            kernels += _kernel_rows(kind, own)
    return ProfileReport(
        title=recording["title"],
        model=recording["model"],
        device=recording["device"],
        platform=recording["platform"],
        dtype=recording["dtype"],
        num_devices=recording["num_devices"],
        peak=peak,
        steps=tuple(_step_row(kind, own, steps) for kind, own in by_kind.items() if own),
        parts=tuple(parts),
        kernels=tuple(kernels),
        timings=(
            *(Timing(**each) for each in recording.get("timings", ())),
            *timings(hosts, "recorded"),
        ),
        notes=(*recording.get("notes", ()), *_notes(peak), *_names_note(programs)),
    )


def _part_rows(
    kind: Kind, steps: Sequence[DeviceStep], costs: Sequence[dict[str, Cost]], peak: Peak | None
) -> list[WorkRow]:
    """A row for each part, in the order in which a step runs them, with the part's least cost."""
    rows = {row.part: row for row in _rows(kind, steps, lambda each: (each.part, ""))}
    found = []
    for part in (*PARTS, OTHER):
        if (row := rows.get(part)) is not None:
            cost = sum_costs(each.get(part, NOTHING) for each in costs).divided(len(steps))
            found.append(row if part == OTHER else _with_cost(row, cost, peak))
    return found


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """The sum of some costs."""
    total = NOTHING
    for cost in costs:
        total = total.plus(cost)
    return total


def _kernel_rows(kind: Kind, steps: Sequence[DeviceStep]) -> list[WorkRow]:
    """A row for each kernel of each part, the longest first."""
    rows = _rows(kind, steps, lambda each: (each.part, _NUMBER.sub("", each.event.name)))
    return sorted(rows, key=lambda row: -row.seconds)


def _rows(
    kind: Kind, steps: Sequence[DeviceStep], group: Callable[[PartEvent], tuple[str, str]]
) -> list[WorkRow]:
    """The mean step's kernels, added up by part and name."""
    seconds: dict[tuple[str, str], float] = collections.defaultdict(float)
    calls: collections.Counter[tuple[str, str]] = collections.Counter()
    for each in (kernel for step in steps for kernel in step.kernels):
        seconds[group(each)] += each.event.duration_ns * 1e-9
        calls[group(each)] += 1
    total = sum(seconds.values())
    return [
        WorkRow(
            kind=kind,
            part=part,
            kernel=name,
            calls=calls[part, name] / len(steps),
            seconds=spent / len(steps),
            share=spent / total if total else 0.0,
        )
        for (part, name), spent in seconds.items()
    ]


def _with_cost(row: WorkRow, cost: Cost, peak: Peak | None) -> WorkRow:
    def share(amount: float, speed: float | None) -> float | None:
        return None if speed is None or not row.seconds else amount / row.seconds / speed

    return dataclasses.replace(
        row,
        num_bytes=cost.num_bytes,
        flops=cost.flops,
        memory_share=share(cost.num_bytes, peak and peak.bytes_per_s),
        matrix_share=share(cost.flops, peak and peak.flops_per_s),
    )


def _step_row(kind: Kind, own: Sequence[DeviceStep], every: Sequence[DeviceStep]) -> StepRow:
    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values)

    before = {id(step): earlier for earlier, step in itertools.pairwise(every)}
    idle = [
        max((step.start_ns - before[id(step)].end_ns) * 1e-9, 0.0)
        for step in own
        if id(step) in before
    ]
    gaps = [step.gaps_s for step in own]
    return StepRow(
        kind=kind,
        steps=len(own),
        num_steps=mean(step.facts.num_steps for step in own),
        rows=mean(step.facts.rows for step in own),
        tokens=mean(step.facts.tokens for step in own),
        context_tokens=mean(step.facts.context_tokens for step in own),
        span_s=mean(step.span_s for step in own),
        busy_s=mean(step.busy_s for step in own),
        num_gaps=mean(len(each) for each in gaps),
        gap_s=mean(sum(each) for each in gaps),
        longest_gap_s=max((gap for each in gaps for gap in each), default=0.0),
        idle_before_s=mean(idle) if idle else None,
    )


def _notes(peak: Peak | None) -> Iterable[str]:
    yield "bytes and operations are the least that the tokens fed need"
    if peak is not None and peak.source != DATA_SHEET:
        yield (
            f"100% is a sustained speed ({peak.source}), on a GPU at the clocks that its power "
            "limit leaves: a short kernel at higher clocks may show more, and so may one that "
            "finds its data in a cache"
        )


def _names_note(programs: Programs) -> Iterable[str]:
    parts = [part for _, table in programs.values() for part in table.values()]
    if parts and not any(parts):
        yield (
            "the programs have no names of parts: they were compiled by a version without; empty "
            "the compilation cache, or use `jaxinfer profile`"
        )
