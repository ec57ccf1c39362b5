"""A picture of how tokens were spread over experts: a cell for each expert of each layer."""

import math
from collections.abc import Iterator

import numpy as np

from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.profiling.svg import Palette, picture, text

_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 72, 24, 52
_WIDTH, _MOST_CELL, _LEAST_CELL = 640, 24, 4
_SWATCHES, _SWATCH, _LEGEND = 5, 14, 420
_COLOURS = Palette(light=("#2a6fc9",), dark=("#7ab0f2",))


def heat_map(experts: ExpertStatistics, title: str) -> str:
    """The SVG's text: layers from the top, experts from the left; the darker, the more tokens.

    Args:
        experts: of a model with experts.
        title: names the model.
    """
    num_layers, num_experts = experts.load.shape
    cell = min(max(_WIDTH // num_experts, _LEAST_CELL), _MOST_CELL)
    mean = np.maximum(experts.load.mean(axis=1, keepdims=True), 1e-9)
    ratios = experts.load / mean
    most = max(float(ratios.max()), 1.0)
    right, bottom = _LEFT + cell * num_experts, _TOP + cell * num_layers
    body = [
        *_legend(most),
        *(each for row in range(num_layers) for each in _row(experts, ratios, row, cell, most)),
        *_labels(experts.layers, num_experts, cell),
        text((_LEFT + right) / 2, bottom + 38, "expert", anchor="middle"),
        text(16, _TOP - 8, "layer"),
    ]
    width = max(right, _LEFT + _LEGEND + _SWATCHES * _SWATCH) + _RIGHT
    return picture(width, bottom + _BOTTOM, title, body, _COLOURS)


def _row(
    experts: ExpertStatistics, ratios: np.ndarray, row: int, cell: int, most: float
) -> Iterator[str]:
    layer, y = experts.layers[row], _TOP + cell * row
    for expert, ratio in enumerate(ratios[row].tolist()):
        yield (
            f'<rect class="c0" x="{_LEFT + cell * expert}" y="{y}" width="{cell}" height="{cell}" '
            f'fill-opacity="{ratio / most:.3f}"><title>layer {layer}, expert {expert}: '
            f"{ratio:.2f}</title></rect>"
        )


def _legend(most: float) -> Iterator[str]:
    words = "tokens of an expert by those of a mean one of its layer:"
    yield text(_LEFT, 46, f"{words} 0 to {most:.3g}")
    for i in range(_SWATCHES):
        x, share = _LEFT + _LEGEND + _SWATCH * i, i / (_SWATCHES - 1)
        yield (
            f'<rect class="c0" x="{x}" y="35" width="{_SWATCH}" height="{_SWATCH}" '
            f'fill-opacity="{share:.2f}"/>'
        )


def _labels(layers: tuple[int, ...], num_experts: int, cell: int) -> Iterator[str]:
    for row in range(0, len(layers), math.ceil(14 / cell)):
        yield text(_LEFT - 8, _TOP + cell * (row + 0.5) + 4, str(layers[row]), anchor="end")
    for expert in range(0, num_experts, math.ceil(28 / cell)):
        x = _LEFT + cell * (expert + 0.5)
        yield text(x, _TOP + cell * len(layers) + 18, str(expert), anchor="middle")
