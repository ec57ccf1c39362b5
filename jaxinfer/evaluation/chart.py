"""A chart of the errors that residual streams have behind each layer."""

import math
from collections.abc import Iterator, Sequence

from jaxinfer.profiling.svg import Palette, picture, text

_LEFT, _TOP, _WIDTH, _HEIGHT, _RIGHT, _BOTTOM = 76, 62, 560, 260, 24, 52
_COLOURS = Palette(light=("#2a6fc9",), dark=("#7ab0f2",))
_STYLE = "polyline{fill:none;stroke-width:2}"


def layer_chart(errors: Sequence[float], title: str) -> str:
    """The SVG's text: a line over the layers, with a point for each.

    Args:
        errors: of each layer, as `Evaluation.layer_errors`.
        title: names both models.
    """
    body = [*_axes(len(errors), top := _ceiling(max(errors)))]
    points = [
        (_LEFT + _across(i, len(errors)), _TOP + _HEIGHT * (1 - error / top))
        for i, error in enumerate(errors)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    body.append(f'<polyline class="s0" points="{line}"/>')
    for (x, y), (i, error) in zip(points, enumerate(errors), strict=True):
        body.append(
            f'<circle class="c0" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
            f"<title>layer {i}: {error:.3g}</title></circle>"
        )
    width, height = _LEFT + _WIDTH + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    return picture(width, height, title, body, _COLOURS, style=_STYLE)


def _axes(num_layers: int, top: float) -> Iterator[str]:
    yield text(_LEFT, _TOP - 12, "relative error of the residual stream behind each layer")
    for tick in range(5):
        y = _TOP + _HEIGHT * (1 - tick / 4)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(_LEFT - 8, y + 4, f"{top * tick / 4:.3g}", anchor="end")
    for layer in range(0, num_layers, math.ceil(num_layers / 16)):
        x = _LEFT + _across(layer, num_layers)
        yield text(x, _TOP + _HEIGHT + 18, str(layer), anchor="middle")
    yield text(_LEFT + _WIDTH / 2, _TOP + _HEIGHT + 40, "layer", anchor="middle")


def _across(layer: int, num_layers: int) -> float:
    """Pixels from the left axis, with half a layer's room at each end."""
    return _WIDTH * (layer + 0.5) / num_layers


def _ceiling(largest: float) -> float:
    """The end of an axis with four even parts: 1, 2, 4 or 8 times a power of ten."""
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 4, 8, 10, 20) if step * power >= largest)
