"""A profile's report as text: tables for a terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.share_text import share_text

if TYPE_CHECKING:
    from jaxinfer.profiling.report import ProfileReport, StepRow, Timing, WorkRow

_MOST_KERNELS = 12
_WORK = ("calls", "ms", "share", "MB", "GFLOP", "of memory", "of matrix")


def report_lines(report: "ProfileReport") -> Iterator[str]:
    """The lines of a report."""
    yield f"{report.title}, {report.dtype}"
    if report.peak is not None:
        memory, matrix = report.peak.bytes_per_s / 1e9, report.peak.flops_per_s / 1e12
        yield f"at most {memory:,.4g} GB/s and {matrix:,.4g} TFLOP/s ({report.peak.source})"
    yield ""
    yield from _table(
        ("mean step", "steps", "rows", "tokens", "ms", "busy ms", "gaps", "gap ms", "idle before"),
        [_step_cells(row) for row in report.steps],
    )
    for step in report.steps:
        yield ""
        yield from _table(
            (f"{step.kind}, by part", *_WORK),
            [_work_cells(row.part, row) for row in report.parts if row.kind == step.kind],
        )
    for step in report.steps:
        own = [row for row in report.kernels if row.kind == step.kind]
        yield ""
        yield from _table(
            (f"{step.kind}, by kernel", *_WORK),
            [_work_cells(f"{row.part}: {row.kernel}", row) for row in own[:_MOST_KERNELS]],
        )
        if len(own) > _MOST_KERNELS:
            rest = sum(row.seconds for row in own[_MOST_KERNELS:])
            yield f"and {len(own) - _MOST_KERNELS} more, {rest * 1e3:.3f} ms together"
    if report.timings:
        yield ""
        yield from _table(
            ("step, by the host's clock", "ms", "times", "busy", *HOST_SPANS),
            [_timing_cells(each, report) for each in report.timings],
        )
    for note in report.notes:
        yield f"Note: {note}."


def _step_cells(row: "StepRow") -> tuple[str, ...]:
    return (
        row.kind,
        str(row.steps),
        f"{row.rows:g}",
        f"{row.tokens:g}",
        _ms(row.span_s),
        _ms(row.busy_s),
        f"{row.num_gaps:.0f}",
        _ms(row.gap_s),
        "-" if row.idle_before_s is None else f"{_ms(row.idle_before_s)} ms",
    )


def _timing_cells(each: "Timing", report: "ProfileReport") -> tuple[str, ...]:
    return (
        f"{each.kind}, {each.run}",
        _ms(each.seconds),
        *timing_shares(each, report),
        *(_ms(each.host[name]) if each.host else "-" for name in HOST_SPANS),
    )


def timing_shares(each: "Timing", report: "ProfileReport") -> tuple[str, str]:
    """A step's time over that of one as always, and the share of it that kernels take."""
    usual = [t for t in report.timings if (t.kind, t.run) == (each.kind, "as always")]
    busy = [row.busy_s / row.num_steps for row in report.steps if row.kind == each.kind]
    return (
        f"{each.seconds / usual[0].seconds:.2f}" if usual else "-",
        _share(busy[0] / each.seconds if busy else None),
    )


def _work_cells(name: str, row: "WorkRow") -> tuple[str, ...]:
    return (
        name,
        f"{row.calls:.0f}",
        _ms(row.seconds),
        share_text(row.share, 1),
        "-" if row.num_bytes is None else f"{row.num_bytes / 1e6:,.2f}",
        "-" if row.flops is None else f"{row.flops / 1e9:,.3f}",
        _share(row.memory_share),
        _share(row.matrix_share),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else share_text(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        first, *others = (
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *others))
