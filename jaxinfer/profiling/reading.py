"""Makes the report of a profile's directory from its traces and what was kept beside them."""

import collections
import dataclasses
import itertools
import json
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jaxinfer.planning.shapes import ModelShape
from jaxinfer.profiling.costs import NOTHING, Cost, step_costs
from jaxinfer.profiling.device_steps import DeviceStep, Programs, device_steps
from jaxinfer.profiling.files import RECORDING, cycle_directory
from jaxinfer.profiling.host_time import StepTime, Timing, step_times, timings
from jaxinfer.profiling.parts import HOST_SPANS, OTHER, PARTS
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.rows import DATA_SHEET, Bar, Peak, StepRow, WorkRow
from jaxinfer.profiling.trace.programs import Kernel
from jaxinfer.profiling.trace.steps import Kind, StepFacts
from jaxinfer.profiling.trace.xplane import Span, find_trace, read_trace

_KINDS: tuple[Kind, ...] = ("prefill", "decode")
_NUMBER = re.compile(r"([._]\d+)+$")  # XLA numbers the copies of a kernel


def read_report(directory: str | Path, **facts: Any) -> ProfileReport:
    """The report of what a profile recorded.

    Args:
        directory: of the profile.
        facts: in place of what the recording says of the engine, as `make_report` takes it.

    Raises:
        ValueError: there is no recording, or no step was recorded.
    """
    directory = Path(directory)
    file = directory / RECORDING
    if not file.is_file():
        raise ValueError(f"no profile in {directory}: {RECORDING} is missing")
    recording = {**json.loads(file.read_text()), **facts}
    programs = {
        key: (module, {name: Kernel(*kernel) for name, kernel in kernels.items()})
        for key, (module, kernels) in recording["programs"].items()
    }
    steps: list[DeviceStep] = []
    spans: list[list[Span]] = []
    hosts: list[StepTime] = []
    for index, cycle in enumerate(recording["cycles"]):
        if cycle:
            trace = read_trace(find_trace(cycle_directory(directory, index)))
            launched = [StepFacts.from_dict(each) for each in cycle]
            steps += device_steps(launched, trace.kernels, programs)
            spans.append(trace.spans)
            hosts += step_times(trace.spans, [(facts.kind, facts.num_steps) for facts in launched])
    if not steps:
        raise ValueError(
            f"no step was recorded in {directory}: fewer steps ran than the schedule waits for, or "
            "the trace holds no kernels"
        )
    return make_report(recording, steps, spans, hosts, programs)


def make_report(
    recording: dict[str, Any],
    steps: Sequence[DeviceStep],
    spans: Sequence[Sequence[Span]],
    hosts: Sequence[StepTime],
    programs: Programs,
) -> ProfileReport:
    """The report of steps.

    Args:
        recording: the engine's facts: "title", "model", "dtype", "device", "platform",
            "num_devices", "peak", and perhaps "notes", and "timings" of the same steps unrecorded.
        steps: as the device ran them.
        spans: of the host in each repetition.
        hosts: the steps as the host saw them.
        programs: that the steps launched.
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
            costs = [
                step_costs(shape, recording["dtype"], s.facts, recording["num_devices"])
                for s in own
            ]
            parts += _part_rows(kind, own, costs, peak)
            kernels += _kernel_rows(kind, own, peak)
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
        bars=tuple(_bars(by_kind["decode"] or list(steps), spans)),
        notes=(*recording.get("notes", ()), *_notes(peak), *_names_note(programs)),
    )


def _part_rows(
    kind: Kind, steps: Sequence[DeviceStep], costs: Sequence[dict[str, Cost]], peak: Peak | None
) -> list[WorkRow]:
    seconds: dict[str, float] = collections.defaultdict(float)
    calls: collections.Counter[str] = collections.Counter()
    for each in (kernel for step in steps for kernel in step.kernels):
        seconds[each.part] += each.event.duration_ns * 1e-9
        calls[each.part] += 1
    total = sum(seconds.values())
    rows = []
    for part in (*PARTS, OTHER):
        if part in seconds:
            cost = sum_costs(each.get(part, NOTHING) for each in costs)
            known = None if part == OTHER else cost.divided(len(steps))
            row = _row(kind, part, "", calls[part], seconds[part], total, len(steps), known, peak)
            rows.append(row)
    return rows


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """All of them together."""
    total = NOTHING
    for cost in costs:
        total = total.plus(cost)
    return total


def _kernel_rows(kind: Kind, steps: Sequence[DeviceStep], peak: Peak | None) -> list[WorkRow]:
    grouped: dict[tuple[str, str], list[Any]] = collections.defaultdict(list)
    for each in (kernel for step in steps for kernel in step.kernels):
        grouped[each.part, _NUMBER.sub("", each.event.name)].append(each)
    total = sum(e.event.duration_ns for events in grouped.values() for e in events) * 1e-9
    rows = []
    for (part, name), events in grouped.items():
        spent = sum(e.event.duration_ns for e in events) * 1e-9
        working = [e.kernel for e in events if e.does_work]
        num_bytes = _mean_amount([kernel.num_bytes for kernel in working], len(steps))
        flops = _mean_amount([kernel.flops for kernel in working], len(steps))
        row = _row(kind, part, name, len(events), spent, total, len(steps), None, peak)
        rows.append(_with_cost(row, num_bytes, flops, peak))
    return sorted(rows, key=lambda row: -row.seconds)


def _mean_amount(amounts: Sequence[int | None], steps: int) -> float | None:
    """A step's, or None without any or if one is not known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) / steps if known and len(known) == len(amounts) else None


def _row(
    kind: Kind,
    part: str,
    kernel: str,
    calls: int,
    seconds: float,
    total: float,
    steps: int,
    cost: Cost | None,
    peak: Peak | None,
) -> WorkRow:
    row = WorkRow(
        kind=kind,
        part=part,
        kernel=kernel,
        calls=calls / steps,
        seconds=seconds / steps,
        share=seconds / total if total else 0.0,
    )
    return row if cost is None else _with_cost(row, cost.num_bytes, cost.flops, peak)


def _with_cost(
    row: WorkRow, num_bytes: float | None, flops: float | None, peak: Peak | None
) -> WorkRow:
    def share(amount: float | None, speed: float | None) -> float | None:
        if amount is None or speed is None or not row.seconds:
            return None
        return amount / row.seconds / speed

    return dataclasses.replace(
        row,
        num_bytes=num_bytes,
        flops=flops,
        memory_share=share(num_bytes, peak and peak.bytes_per_s),
        matrix_share=share(flops, peak and peak.flops_per_s),
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


def _bars(steps: Sequence[DeviceStep], spans: Sequence[Sequence[Span]]) -> Iterable[Bar]:
    """The time line of the step of median length."""
    step = sorted(steps, key=lambda each: each.span_s)[len(steps) // 2]
    begin, end = step.start_ns, step.end_ns
    for each in (kernel for kernel in step.kernels if kernel.event.start_ns < end):
        start = (each.event.start_ns - begin) * 1e-9
        yield Bar(
            lane="device", name=each.part, start_s=start, seconds=each.event.duration_ns * 1e-9
        )
    for span in (span for of_cycle in spans for span in of_cycle):
        if (
            span.name in HOST_SPANS
            and span.start_ns < end
            and span.start_ns + span.duration_ns > begin
        ):
            start = (span.start_ns - begin) * 1e-9
            yield Bar(lane="host", name=span.name, start_s=start, seconds=span.duration_ns * 1e-9)


def _notes(peak: Peak | None) -> Iterable[str]:
    yield (
        "bytes and operations by part are the least that the tokens fed need; by kernel they are "
        "those of its operands and results, with padding, and with what one kernel hands to the "
        'next where a fused one would keep it; "-" is not known from shapes (see the part), or a '
        "kernel that prepares another"
    )
    if peak is not None and peak.source != DATA_SHEET:
        yield (
            f"100% is a sustained speed ({peak.source}), on a GPU at the clocks that its power "
            "limit leaves: a short kernel at higher clocks may show more, and so may one that "
            "finds its data in a cache"
        )


def _names_note(programs: Programs) -> Iterable[str]:
    kernels = [kernel for _, table in programs.values() for kernel in table.values()]
    if kernels and not any(kernel.part for kernel in kernels):
        yield (
            "the programs have no names of parts: they were compiled by a version without; empty "
            "the compilation cache, or use `jaxinfer profile`"
        )
