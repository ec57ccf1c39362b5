"""Tables and pictures of `docs/profiling.md`, from records of kind "profile"."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxinfer.profiling.figures import share_text
from jaxinfer.profiling.host_time import Timing
from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.rows import StepRow, WorkRow
from jaxinfer.profiling.text import timing_shares
from scripts.docs.pictures.roofline import roofline
from scripts.docs.pictures.strip import Bar, joined_bars, strip

Record = dict[str, Any]
_MOST_KERNELS = 30  # kept of each kind of step
_MOST_SHOWN = 5
_HEAD = "| part | calls | ms | share | MB | GFLOP | of memory | of matrix units |"


def profile_record(report: ProfileReport, bars: Sequence[Bar]) -> Record:
    """What is kept of a report: its longest kernels, and bars of which neighbours are joined."""
    device = [bar for bar in bars if bar.lane == "device"]
    others = [bar for bar in bars if bar.lane != "device"]
    kept = dataclasses.replace(
        report,
        kernels=tuple(
            row
            for step in report.steps
            for row in [k for k in report.kernels if k.kind == step.kind][:_MOST_KERNELS]
        ),
    )
    joined = [dataclasses.asdict(bar) for bar in (*joined_bars(device), *others)]
    return {"report": _rounded({**kept.to_dict(), "bars": joined})}


def _kept(record: Record) -> tuple[ProfileReport, list[Bar]]:
    values = dict(record["report"])
    bars = [Bar(**each) for each in values.pop("bars")]
    return ProfileReport.from_dict(values), bars


def profile_lines(platform: str, records: list[Record]) -> list[str]:
    """A page's section about the newest profile on a platform, "cpu" or "gpu"."""
    record = newest_profile(platform, records)
    if record is None:
        return ["Not measured yet."]
    report, _ = _kept(record)
    machine, commit = record["machine"], (record["commit"] or "unknown")[:7]
    device = machine["cpu"] if platform == "cpu" else machine["device"]
    lines = [
        f"{report.title}, {report.dtype}: {device}, {machine['cpu_cores']} cores, "
        f"jax {machine.get('versions', {}).get('jax', 'unknown')}, commit {commit}, "
        f"`{record['command']}`.",
        "",
        f"![One step over time](figures/profile-{platform}-step.svg)",
        "",
        f"![Each part on a roofline](figures/profile-{platform}-roofline.svg)",
    ]
    for step in report.steps:
        own = [row for row in report.parts if row.kind == step.kind]
        lines += ["", _step_line(step), "", _HEAD, "|" + "---|" * 8]
        lines += [_work_line(row.part, row) for row in own]
        longest = [row for row in report.kernels if row.kind == step.kind][:_MOST_SHOWN]
        lines += ["", f"The longest kernels of a {step.kind} step:", ""]
        lines += ["| kernel | calls | ms | share |", "|" + "---|" * 4]
        lines += [f"| {' | '.join(_times(f'{row.part}: {row.kernel}', row))} |" for row in longest]
    head = ("step, by the host's clock", "ms", "times", "busy", *HOST_SPANS)
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [_timing_line(each, report) for each in report.timings]
    # Reports had bytes by kernel once; the tables here never do.
    notes = [note for note in report.notes if "by kernel they are" not in note]
    return [*lines, "", *(f"- {note[0].upper()}{note[1:]}." for note in notes)]


def _timing_line(each: Timing, report: ProfileReport) -> str:
    cells = (
        f"{each.kind}, {each.run}",
        f"{each.seconds * 1e3:.3f}",
        *timing_shares(each, report.timings, report.steps),
        *(f"{each.host[name] * 1e3:.3f}" if each.host else "-" for name in HOST_SPANS),
    )
    return f"| {' | '.join(cells)} |"


def profile_pictures(records: list[Record]) -> dict[str, str]:
    """The pictures' files below docs/figures, by name; README's is a GPU's where there is one."""
    pictures: dict[str, str] = {}
    for platform in ("cpu", "gpu"):
        record = newest_profile(platform, records)
        if record is not None:
            report, bars = _kept(record)
            pictures[f"profile-{platform}-step.svg"] = strip(report, bars)
            if report.peak is not None:
                pictures[f"profile-{platform}-roofline.svg"] = roofline(report)
            pictures["profile-step.svg"] = strip(report, bars)
    return pictures


def newest_profile(platform: str, records: list[Record]) -> Record | None:
    """The newest of the records, which are the oldest first."""
    own = [
        record
        for record in records
        if record["kind"].startswith("profile-") and record["report"]["platform"] == platform
    ]
    return own[-1] if own else None


def _step_line(step: StepRow) -> str:
    return (
        f"**{step.kind}**, the mean of {step.steps}: {step.span_s * 1e3:.3f} ms on the device, of "
        f"which {step.busy_s * 1e3:.3f} ms with a kernel at work; {step.num_gaps:.0f} gaps."
    )


def _work_line(name: str, row: WorkRow) -> str:
    def amount(value: float | None, unit: float, digits: int) -> str:
        return "-" if value is None else f"{value / unit:,.{digits}f}"

    def share(value: float | None) -> str:
        return "-" if value is None else share_text(value)

    cells = (
        *_times(name, row),
        amount(row.num_bytes, 1e6, 2),
        amount(row.flops, 1e9, 3),
        share(row.memory_share),
        share(row.matrix_share),
    )
    return f"| {' | '.join(cells)} |"


def _times(name: str, row: WorkRow) -> tuple[str, ...]:
    return name, f"{row.calls:.0f}", f"{row.seconds * 1e3:.3f}", share_text(row.share, 1)


def _rounded(value: Any) -> Any:
    """Numbers to six digits, in any JSON-like value."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
