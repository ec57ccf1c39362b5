"""Each part of a step on a roofline: operations a second over operations a byte, both from shapes.

Below the slope the memory is the limit, below the flat the matrix units; a part's distance from the
roof is what it leaves.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jaxinfer.profiling.report import ProfileReport
from jaxinfer.profiling.rows import Peak, WorkRow
from jaxinfer.profiling.svg import picture, text
from scripts.docs.pictures.colours import PART_COLOURS, colour_class

_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP = 104, 58, 330, 250, 124
_RADIUS = 5
_LETTER = 7.0  # px of a letter, at most
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))


def roofline(report: ProfileReport) -> str:
    """The SVG's text: a panel for each kind of step.

    Raises:
        ValueError: the report has no peak.
    """
    peak = report.peak
    if peak is None:
        raise ValueError("a roofline needs the device's speeds, and the report has no peak")
    body = []
    for index, step in enumerate(report.steps):
        rows = [row for row in report.parts if row.kind == step.kind and row.flops]
        body += _panel(step.kind, rows, peak, _LEFT + index * (_WIDTH + _GAP))
    width = _LEFT + len(report.steps) * (_WIDTH + _GAP) - _GAP + 60
    title = f"Each part below what the device can do: {report.title}"
    return picture(width, _TOP + _HEIGHT + 58, title, body, PART_COLOURS)


def _panel(kind: str, rows: Sequence[WorkRow], peak: Peak, left: float) -> Iterator[str]:
    points = [(row, *_point(row)) for row in rows if row.num_bytes and row.seconds]
    ridge = peak.flops_per_s / peak.bytes_per_s
    low_x, high_x = _decades([x for _, x, _ in points] + [ridge])
    roof = [min(x * peak.bytes_per_s, peak.flops_per_s) for x in (10.0**low_x, 10.0**high_x)]
    low_y, high_y = _decades([y for *_, y in points] + [peak.flops_per_s, min(roof)])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low_x) / (high_x - low_x)
        up = (math.log10(y) - low_y) / (high_y - low_y)
        return left + _WIDTH * across, _TOP + _HEIGHT * (1 - up)

    yield text(left, _TOP - 10, f"{kind}: operations a second", weight="bold")
    for power in range(low_y, high_y + 1):
        y = place(10.0**low_x, 10.0**power)[1]
        yield f'<line class="rule" x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(left - 8, y + 4, _speed(10.0**power), anchor="end")
    for power in range(low_x, high_x + 1):
        x = place(10.0**power, 10.0**low_y)[0]
        yield text(x, _TOP + _HEIGHT + 18, f"{10.0**power:g}", anchor="middle")
    yield text(
        left + _WIDTH / 2, _TOP + _HEIGHT + 38, "operations a byte of memory", anchor="middle"
    )
    corners = [(10.0**low_x, roof[0]), (ridge, peak.flops_per_s), (10.0**high_x, roof[1])]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*corner) for corner in corners))
    yield f'<polyline class="roof" points="{line}"/>'
    dots = [(row.part, *place(x, y)) for row, x, y in sorted(points, key=lambda point: -point[2])]
    for part, across, up in dots:
        yield (
            f'<circle class="{colour_class(part)}" cx="{across:.1f}" cy="{up:.1f}" r="{_RADIUS}"/>'
        )
    for (part, across, up), box in zip(dots, _name_boxes(dots, left), strict=True):
        x, y = min(max(across, box.left), box.right), min(max(up, box.top), box.bottom)
        if math.hypot(x - across, y - up) > 2 * _RADIUS:  # whose name it is would not be seen
            yield f'<line class="rule" x1="{across:.1f}" y1="{up:.1f}" x2="{x:.1f}" y2="{y:.1f}"/>'
        yield text(box.left, box.bottom - 3, part)


def _name_boxes(dots: Sequence[tuple[str, float, float]], left: float) -> "Iterator[_Box]":
    """A place for each part's name, near its dot where nothing else is."""
    panel = _Box(left + 2, _TOP - 6, left + _WIDTH + 36, _TOP + _HEIGHT - 2)
    taken = [_Box(x - _RADIUS, y - _RADIUS, x + _RADIUS, y + _RADIUS) for _, x, y in dots]
    for part, x, y in dots:
        width = _LETTER * len(part)
        boxes = [_Box(at, up - 10, at + width, up + 3) for at, up in _places(x, y, width)]
        inside = [box for box in boxes if box.is_in(panel)]
        free = [box for box in inside if not any(box.meets(other) for other in taken)]
        best = (free or inside or boxes)[0]
        taken.append(best)
        yield best


def _places(x: float, y: float, width: float) -> Iterator[tuple[float, float]]:
    """Where a name may begin: to the right of its dot, to the left, then ever further away."""
    for away in range(0, 60, 13):
        for up in dict.fromkeys((y + 4 + away, y + 4 - away)):
            yield x + _RADIUS + 3, up
            yield x - _RADIUS - 3 - width, up
        for up in (y + 17 + away, y - 9 - away):
            yield x - width / 2, up


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def is_in(self, other: "_Box") -> bool:
        across = other.left <= self.left and self.right <= other.right
        return across and other.top <= self.top and self.bottom <= other.bottom

    def meets(self, other: "_Box") -> bool:
        apart = self.right <= other.left or other.right <= self.left
        return not (apart or self.bottom <= other.top or other.bottom <= self.top)


def _point(row: WorkRow) -> tuple[float, float]:
    flops, moved = row.flops or 0.0, row.num_bytes or 1.0
    return flops / moved, flops / row.seconds


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Powers of ten that hold all values, at least one apart."""
    low = math.floor(math.log10(min(values)))
    return low, max(math.ceil(math.log10(max(values))), low + 1)


def _speed(flops_per_s: float) -> str:
    unit, name = next(pair for pair in _UNITS if flops_per_s >= pair[0] or pair[0] == 1.0)
    return f"{flops_per_s / unit:g} {name}FLOP/s"
