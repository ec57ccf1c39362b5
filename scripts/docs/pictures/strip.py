"""One step as a strip: what the device and the host do over time, and each part's total."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from jaxinfer.profiling.device_steps import DeviceStep
from jaxinfer.profiling.parts import HOST_SPANS, OTHER, PARTS
from jaxinfer.profiling.reading import Recording
from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.svg import picture, text
from jaxinfer.profiling.trace.xplane import Span
from scripts.docs.pictures.colours import PART_COLOURS, colour_class

_LEFT, _WIDTH, _RIGHT = 64, 720, 16
_TOP, _LANE, _PITCH = 62, 34, 52
_LEAST = 0.15  # px; a shorter bar would not be drawn
_COLUMN, _ROW, _COLUMNS = 240, 18, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of the time line of one step.

    Attributes:
        lane: "device" or "host".
        name: a part, or what the host did.
        start_s: from the step's first kernel; the host may be earlier.
        seconds: how long.
    """

    lane: str
    name: str
    start_s: float
    seconds: float


def time_line(recording: Recording) -> list[Bar]:
    """The bars of the decode step of median length, or of such a prefill where none decodes."""
    decodes = [step for step in recording.steps if step.facts.kind == "decode"]
    steps = sorted(decodes or recording.steps, key=lambda each: each.span_s)
    return list(_bars(steps[len(steps) // 2], recording.spans))


def strip(report: ProfileReport, bars: Sequence[Bar]) -> str:
    """The SVG's text: bars in two lanes, and a legend with times."""
    end = max((bar.start_s + bar.seconds for bar in bars if bar.lane == "device"), default=0.0)
    body = [*_axis(end)]
    for index, lane in enumerate(("device", "host")):
        own = [bar for bar in bars if bar.lane == lane]
        y = _TOP + index * _PITCH
        body.append(text(_LEFT - 8, y + _LANE / 2 + 4, lane, anchor="end"))
        body += _lane(joined_bars(own) if lane == "device" else own, y, end)
    top = _TOP + 2 * _PITCH + 34
    legend = list(_legend(bars, top, end))
    rows = -(-len(legend) // (2 * _COLUMNS))
    height = top + rows * _ROW + 8
    kind = "decode" if any(row.kind == "decode" for row in report.steps) else "prefill"
    title = f"One {kind} step, {end * 1e3:.2f} ms: {report.title}"
    body.append(text(16, 42, _compared(report, kind)))
    return picture(_LEFT + _WIDTH + _RIGHT, height, title, [*body, *legend], PART_COLOURS)


def _bars(step: DeviceStep, spans: Sequence[Sequence[Span]]) -> Iterator[Bar]:
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


def _compared(report: ProfileReport, kind: str) -> str:
    """How long such a step takes without a recording, for its picture is of a recorded one."""
    took = {each.run: each.seconds * 1e3 for each in report.timings if each.kind == kind}
    step = next(row for row in report.steps if row.kind == kind)
    busy = f"kernels run for {step.busy_s * 1e3:.2f} ms of a mean recorded step"
    if "as always" not in took:
        return busy
    graphs = ", with CUDA graphs," if "without CUDA graphs" in took else ""
    return f"{busy}; an unrecorded one{graphs} takes {took['as always']:.2f} ms"


def joined_bars(bars: Sequence[Bar]) -> Iterator[Bar]:
    """Neighbours of one part as one bar, where no gap between them could be seen."""
    last: Bar | None = None
    for bar in sorted(bars, key=lambda each: each.start_s):
        if last is not None and last.name == bar.name:
            end = max(last.start_s + last.seconds, bar.start_s + bar.seconds)
            if bar.start_s - (last.start_s + last.seconds) < 1e-6:
                last = Bar(
                    lane=last.lane,
                    name=last.name,
                    start_s=last.start_s,
                    seconds=end - last.start_s,
                )
                continue
        if last is not None:
            yield last
        last = bar
    if last is not None:
        yield last


def _lane(bars: Iterable[Bar], y: float, end: float) -> Iterator[str]:
    for bar in bars:
        begin = max(bar.start_s, 0.0)
        left = _LEFT + _WIDTH * begin / end
        width = _WIDTH * (min(bar.start_s + bar.seconds, end) - begin) / end
        if width > 0:
            yield (
                f'<rect class="{colour_class(bar.name)}" x="{left:.2f}" y="{y}" '
                f'width="{max(width, _LEAST):.2f}" height="{_LANE}"/>'
            )


def _axis(end: float) -> Iterator[str]:
    below = _TOP + 2 * _PITCH - 4
    for tick in range(5):
        x = _LEFT + _WIDTH * tick / 4
        yield f'<line class="rule" x1="{x}" x2="{x}" y1="{_TOP - 6}" y2="{below}"/>'
        anchor = "end" if tick == 4 else "middle"
        yield text(x, below + 14, f"{end * 1e3 * tick / 4:.2f} ms", anchor=anchor)


def _legend(bars: Sequence[Bar], top: float, end: float) -> Iterator[str]:
    """Two elements for each name: its colour, and its name with its time in this step."""
    present = {bar.name for bar in bars}
    host = list(dict.fromkeys(b.name for b in bars if b.lane == "host"))
    names = [(name, "device") for name in (*PARTS, OTHER) if name in present]
    for index, (name, lane) in enumerate([*names, *((name, "host") for name in host)]):
        x = _LEFT + index % _COLUMNS * _COLUMN
        y = top + index // _COLUMNS * _ROW
        own = (bar for bar in bars if bar.name == name and bar.lane == lane)
        seconds = sum(min(bar.start_s + bar.seconds, end) - max(bar.start_s, 0.0) for bar in own)
        yield f'<rect class="{colour_class(name)}" x="{x}" y="{y - 9}" width="12" height="10"/>'
        label = name if lane == "device" else f"host: {name}"
        yield text(x + 18, y, f"{label} {seconds * 1e3:.3f} ms")
