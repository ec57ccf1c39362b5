"""Memory as SVG: a stacked bar for each phase, and the KV cache and steps over time."""

import math
from collections.abc import Iterator, Sequence

from jaxinfer.profiling.memory.holdings import OWNERS, MemoryPhase
from jaxinfer.profiling.memory.text import bytes_text, unit_of
from jaxinfer.profiling.svg import Palette, picture, text
from scripts.measurements.memory_recording import MemorySample

_COLOURS = Palette(
    light=("#2a6fc9", "#16805d", "#94690d", "#c8501e", "#7a4bbf", "#6e7781", "#afb8c1"),
    dark=("#7ab0f2", "#5fcfa6", "#e0b659", "#f29a6e", "#bda0ee", "#8b949e", "#6e7681"),
)
"""Of `OWNERS`, in their order."""
_LEFT, _TOP, _WIDTH, _HEIGHT = 64, 64, 480, 220
_LEGEND_LINE, _TICKS, _MOST_POINTS = 18, 4, 400
_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
_STEP = OWNERS.index("step temporaries")
_CACHE = OWNERS.index("KV cache")


def phases_picture(device: str, phases: Sequence[MemoryPhase]) -> str:
    """The SVG's text: a bar for each phase, owners stacked from the weights up.

    Args:
        device: its kind, for the title.
        phases: in the order of time.
    """
    peak = max(phases, key=lambda phase: phase.num_bytes)
    top = _top(peak.num_bytes)
    lines = [*_axis(top)]
    column = _WIDTH / len(phases)
    for i, phase in enumerate(phases):
        x, below = _LEFT + (i + 0.2) * column, 0
        for holding in phase.holdings:
            y0, y1 = _y(below, top), _y(below + holding.num_bytes, top)
            lines.append(
                f'<rect class="c{OWNERS.index(holding.owner)}" x="{x:.1f}" y="{y1:.1f}" '
                f'width="{0.6 * column:.1f}" height="{y0 - y1:.1f}"><title>{holding.owner}: '
                f"{bytes_text(holding.num_bytes)} ({holding.source})</title></rect>"
            )
            below += holding.num_bytes
        middle = x + 0.3 * column
        lines.append(text(middle, _y(below, top) - 4, bytes_text(below), anchor="middle"))
        lines.append(text(middle, _TOP + _HEIGHT + 16, phase.name, anchor="middle"))
    owners = [o for o in OWNERS if any(phase.bytes_of(o) for phase in phases)]
    legend = [(OWNERS.index(owner), owner) for owner in owners]
    title = f"Memory of a device ({device}): peak {bytes_text(peak.num_bytes)}, {peak.name}"
    return _svg(title, lines, legend)


def samples_picture(samples: Sequence[MemorySample], *, kv_bytes: int) -> str:
    """The SVG's text: KV blocks in use, and the steps' temporaries on top, over seconds.

    Args:
        samples: of all steps.
        kv_bytes: of the whole cache.

    Raises:
        ValueError: no step was recorded.
    """
    if not samples:
        raise ValueError("nothing to draw: no step ran while memory was recorded")
    every = -(-len(samples) // _MOST_POINTS)
    groups = [samples[i : i + every] for i in range(0, len(samples), every)]
    times = [group[0].time_s for group in groups]
    cache = [max(sample.kv_used_bytes for sample in group) for group in groups]
    steps = [max(sample.step_bytes for sample in group) for group in groups]
    sums = [a + b for a, b in zip(cache, steps, strict=True)]
    top, end = _top(max(sums)), max(times[-1], 1e-9)
    zero = [0] * len(times)
    lines = [*_axis(top)]
    lines.append(_area(_CACHE, times, zero, cache, top, end))
    lines.append(_area(_STEP, times, cache, sums, top, end))
    for tick in range(_TICKS + 1):
        x = _LEFT + _WIDTH * tick / _TICKS
        seconds = f"{end * tick / _TICKS:.3g} s"
        lines.append(text(x, _TOP + _HEIGHT + 16, seconds, anchor="middle"))
    legend = [
        (_CACHE, f"KV blocks of running sequences (of {bytes_text(kv_bytes)})"),
        (_STEP, "step temporaries (compiler)"),
    ]
    return _svg(f"Memory of {len(samples):,} steps", lines, legend)


def _area(
    kind: int,
    times: Sequence[float],
    low: Sequence[int],
    high: Sequence[int],
    top: float,
    end: float,
) -> str:
    """A band between two lines; each value holds until the next step."""

    def stairs(values: Sequence[int]) -> list[tuple[float, float]]:
        ends = [*times[1:], end]
        return [
            (_LEFT + _WIDTH * time / end, _y(value, top))
            for begin, stop, value in zip(times, ends, values, strict=True)
            for time in (begin, stop)
        ]

    points = [*stairs(high), *reversed(stairs(low))]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon class="c{kind}" points="{path}"/>'


def _top(largest: int) -> float:
    """The end of an axis that reaches beyond the largest value, in steps of round numbers."""
    unit = unit_of(largest)[1]
    least = max(largest / unit / _TICKS, 1e-3)
    power = 10 ** math.floor(math.log10(least))
    step = next(power * factor for factor in _ROUND if power * factor >= least)
    return step * _TICKS * unit


def _y(size: float, top: float) -> float:
    return _TOP + _HEIGHT * (1 - size / top)


def _axis(top: float) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        y = _y(top * tick / _TICKS, top)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        size = f"{top * tick / _TICKS / unit_of(top)[1]:,g}"
        yield text(_LEFT - 6, y + 4, size, anchor="end")
    yield text(_LEFT - 6, _TOP - 16, unit_of(top)[0], anchor="end")


def _svg(title: str, lines: Sequence[str], legend: Sequence[tuple[int, str]]) -> str:
    width = _LEFT + _WIDTH + 24
    height = _TOP + _HEIGHT + 36 + _LEGEND_LINE * len(legend)
    named = []
    for i, (kind, words) in enumerate(legend):
        y = _TOP + _HEIGHT + 40 + i * _LEGEND_LINE
        named.append(f'<rect class="c{kind}" x="{_LEFT}" y="{y - 9}" width="12" height="10"/>')
        named.append(text(_LEFT + 18, y, words))
    return picture(width, height, title, [*lines, *named], _COLOURS)
