"""A profile's report as text: tables for a terminal."""

from collections.abc import Iterator, Sequence

from jaxinfer.profiling.figures import aligned, share_text
from jaxinfer.profiling.host_time import Timing
from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.rows import Peak, StepRow, WorkRow

_MOST_KERNELS = 12
_TIMES = ("calls", "ms", "share")
_WORK = (*_TIMES, "MB", "GFLOP", "of memory", "of matrix")


def heading(title: str, peak: Peak | None) -> Iterator[str]:
    """Lines that name the profiled model and its device's speeds."""
    yield title
    if peak is not None:
        memory, matrix = peak.bytes_per_s / 1e9, peak.flops_per_s / 1e12
        yield f"at most {memory:,.4g} GB/s and {matrix:,.4g} TFLOP/s ({peak.source})"


def step_table(steps: Sequence[StepRow]) -> Iterator[str]:
    """A row for each kind of step."""
    yield ""
    head = (
        "mean step",
        "steps",
        "rows",
        "tokens",
        "ms",
        "busy ms",
        "gaps",
        "gap ms",
        "idle before",
    )
    yield from aligned([head, *map(_step_cells, steps)])


def work_tables(
    steps: Sequence[StepRow], parts: Sequence[WorkRow], kernels: Sequence[WorkRow]
) -> Iterator[str]:
    """Two tables for each kind of step: its parts and its longest kernels."""
    for step in steps:
        yield ""
        rows = [_work_cells(row.part, row) for row in parts if row.kind == step.kind]
        yield from aligned([(f"{step.kind}, by part", *_WORK), *rows])
    for step in steps:
        own = [row for row in kernels if row.kind == step.kind]
        yield ""
        rows = [_time_cells(f"{row.part}: {row.kernel}", row) for row in own[:_MOST_KERNELS]]
        yield from aligned([(f"{step.kind}, by kernel", *_TIMES), *rows])
        if len(own) > _MOST_KERNELS:
            rest = sum(row.seconds for row in own[_MOST_KERNELS:])
            yield f"and {len(own) - _MOST_KERNELS} more, {rest * 1e3:.3f} ms together"


def timing_table(timings: Sequence[Timing], steps: Sequence[StepRow]) -> Iterator[str]:
    """Steps by the host's clock; nothing if none were timed."""
    if timings:
        yield ""
        head = ("step, by the host's clock", "ms", "times", "busy", *HOST_SPANS)
        yield from aligned([head, *(_timing_cells(each, timings, steps) for each in timings)])


def _step_cells(row: StepRow) -> tuple[str, ...]:
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


def _timing_cells(
    each: Timing, timings: Sequence[Timing], steps: Sequence[StepRow]
) -> tuple[str, ...]:
    return (
        f"{each.kind}, {each.run}",
        _ms(each.seconds),
        *timing_shares(each, timings, steps),
        *(_ms(each.host[name]) if each.host else "-" for name in HOST_SPANS),
    )


def timing_shares(
    each: Timing, timings: Sequence[Timing], steps: Sequence[StepRow]
) -> tuple[str, str]:
    """A step's time relative to the "as always" run, and the share of it that kernels take."""
    usual = [t for t in timings if (t.kind, t.run) == (each.kind, "as always")]
    busy = [row.busy_s / row.num_steps for row in steps if row.kind == each.kind]
    return (
        f"{each.seconds / usual[0].seconds:.2f}" if usual else "-",
        _share(busy[0] / each.seconds if busy else None),
    )


def _time_cells(name: str, row: WorkRow) -> tuple[str, ...]:
    return name, f"{row.calls:.0f}", _ms(row.seconds), share_text(row.share, 1)


def _work_cells(name: str, row: WorkRow) -> tuple[str, ...]:
    return (
        *_time_cells(name, row),
        "-" if row.num_bytes is None else f"{row.num_bytes / 1e6:,.2f}",
        "-" if row.flops is None else f"{row.flops / 1e9:,.3f}",
        _share(row.memory_share),
        _share(row.matrix_share),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else share_text(value)
