"""Draws plans as an SVG: time between tokens, and tokens a second, over the number of sequences."""

import math
from collections.abc import Callable, Iterator, Sequence

from jaxinfer.planning import BatchPlan, Plan
from jaxinfer.profiling.pictures.svg import Palette, picture, text

_COLOURS = Palette(
    light=("#2a6fc9", "#c8501e", "#16805d", "#7a4bbf", "#94690d", "#b52f6b"),
    dark=("#7ab0f2", "#f29a6e", "#5fcfa6", "#bda0ee", "#e0b659", "#f088b4"),
)
_STYLE = "polyline{fill:none;stroke-width:2}.floor{stroke-dasharray:4 4}"
MOST_LINES = len(_COLOURS.light)

_WIDTH, _HEIGHT = 340, 230
_LEFT, _TOP, _GAP, _LEGEND = 56, 34, 76, 18
_TICKS = 4
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)

_Value = Callable[[BatchPlan], float | None]


def plot(plans: Sequence[Plan]) -> str:
    """The SVG's text.

    Args:
        plans: at most `MOST_LINES`, each a solid line (expected) and a dashed one (floor) over the
            batches that fit.

    Raises:
        ValueError: there are more, or nothing fits.
    """
    if len(plans) > MOST_LINES:
        raise ValueError(f"a plot holds at most {MOST_LINES} plans, got {len(plans)}")
    if not any(batch.fits for plan in plans for batch in plan.batches):
        raise ValueError("nothing to plot: no batch fits the device")
    width = 2 * (_LEFT + _WIDTH) + _GAP - _LEFT + 16
    height = _TOP + _HEIGHT + 46 + _LEGEND * len(plans)
    panels: list[tuple[str, _Value, _Value]] = [
        (
            "time between tokens, ms",
            lambda batch: batch.tpot.floor_s * 1e3,
            lambda batch: _scaled(batch.tpot.expected_s, 1e3),
        ),
        (
            "output tokens a second",
            lambda batch: batch.sequences / batch.tpot.floor_s,
            lambda batch: _inverse(batch.tpot.expected_s, batch.sequences),
        ),
    ]
    body: list[str] = []
    for i, (title, floor, expected) in enumerate(panels):
        body += _panel(plans, title, floor, expected, _LEFT + i * (_WIDTH + _GAP))
    body += _legend(plans)
    return picture(width, height, _title(plans), body, _COLOURS, heading=False, style=_STYLE)


def _scaled(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


def _inverse(seconds: float | None, count: int) -> float | None:
    return None if seconds is None else count / seconds


def _title(plans: Sequence[Plan]) -> str:
    names = "; ".join(_name(plan) for plan in plans)
    return f"{names}: {plans[0].context:,} tokens a sequence"


def _name(plan: Plan) -> str:
    count = plan.tensor_parallel_size
    return f"{plan.model}, {f'{count} x ' if count > 1 else ''}{plan.chip.name}"


def _panel(
    plans: Sequence[Plan], title: str, floor: _Value, expected: _Value, left: float
) -> Iterator[str]:
    batches = sorted({batch.sequences for plan in plans for batch in _fitting(plan)})
    low, high = math.log2(batches[0]), math.log2(batches[-1])
    span = high - low or 1.0
    points = [
        [(batch.sequences, value(batch)) for batch in _fitting(plan)]
        for plan in plans
        for value in (floor, expected)
    ]
    step = _step(max(y for line in points for _, y in line if y is not None))
    top = step * _TICKS

    def place(sequences: int, value: float) -> tuple[float, float]:
        across = left + _WIDTH * (math.log2(sequences) - low) / span
        return across, _TOP + _HEIGHT * (1 - value / top)

    yield text(left, _TOP - 14, title, weight="bold")
    for tick in range(_TICKS + 1):
        y = place(batches[0], tick * step)[1]
        yield f'<line class="rule" x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(left - 6, y + 4, f"{tick * step:,g}", anchor="end")
    for sequences in batches:
        x = place(sequences, 0)[0]
        yield text(x, _TOP + _HEIGHT + 16, str(sequences), anchor="middle")
    yield text(left + _WIDTH / 2, _TOP + _HEIGHT + 32, "sequences at once", anchor="middle")
    for i, line in enumerate(points):
        known = [place(x, y) for x, y in line if y is not None]
        if known:
            kind = f"s{i // 2}" + (" floor" if i % 2 == 0 else "")
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in known)
            yield f'<polyline class="{kind}" points="{path}"/>'


def _fitting(plan: Plan) -> list[BatchPlan]:
    return sorted((b for b in plan.batches if b.fits), key=lambda batch: batch.sequences)


def _step(largest: float) -> float:
    """A round distance of ticks, of which `_TICKS` reach beyond the largest value."""
    least = largest / _TICKS
    power = 10 ** math.floor(math.log10(least))
    return next(power * factor for factor in _ROUND if power * factor >= least)


def _legend(plans: Sequence[Plan]) -> Iterator[str]:
    for i, plan in enumerate(plans):
        y = _TOP + _HEIGHT + 50 + i * _LEGEND
        kinds = "expected, and its floor (dashed)"
        if plan.batches[0].tpot.expected_s is None:
            kinds = "floor"
        yield f'<rect class="c{i}" x="{_LEFT}" y="{y - 9}" width="12" height="10"/>'
        yield text(_LEFT + 18, y, f"{_name(plan)}: {kinds}")
