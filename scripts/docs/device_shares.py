"""Draws `docs/figures/device-shares.svg`: what each of two devices holds, by kind of parallelism.

Run it: `python -m scripts.docs.device_shares`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FILE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "device-shares.svg"
TITLE = "What each of two devices holds, by kind of parallelism"

Held = Callable[[int, int, int], bool]
"""Of (device, row, column) of a grid: whether the device holds the cell."""

_CELLS, _CELL, _GAP = 4, 15, 3
_GRID = _CELLS * _CELL
_DEVICE = 2 * _GRID + 60
_PANEL, _HEIGHT, _COLUMNS = 2 * _DEVICE + 40, 180, 2

_STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 12px system-ui, sans-serif }
  .kind { font-weight: 600 }
  .small { font-size: 11px }
  .device { fill: none; stroke: #8c959f }
  .weights { fill: #0969da }
  .pages { fill: #bf5700 }
  .absent { fill: none; stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d }
    text { fill: #e6edf3 }
    .device { stroke: #6e7681 }
    .weights { fill: #58a6ff }
    .pages { fill: #f0883e }
    .absent { stroke: #3d444d }
  }
"""


class Kind(NamedTuple):
    """A kind of parallelism.

    Attributes:
        argument: of `LLM`.
        weights: rows are layers, and columns heads or a part of the width.
        pages: rows are tokens of one sequence, and columns heads.
        exchanged: between devices.
        pages_of: what the pages are of, if not of all layers.
    """

    name: str
    argument: str
    weights: Held
    pages: Held
    exchanged: str
    pages_of: str = "KV cache"


def _all(device: int, row: int, column: int) -> bool:
    return True


def _half_of_columns(device: int, row: int, column: int) -> bool:
    return column // 2 == device


def _half_of_layers(device: int, row: int, column: int) -> bool:
    return row // 2 == device


def _every_other_token(device: int, row: int, column: int) -> bool:
    return row % 2 == device


def _first_alone(device: int, row: int, column: int) -> bool:
    return device == 0


KINDS = (
    Kind(
        "Tensor parallelism",
        "tensor_parallel_size=2",
        _half_of_columns,
        _half_of_columns,
        "two sums in each layer",
    ),
    Kind(
        "Experts whole on a device",
        "..., enable_expert_parallel=True",
        _half_of_columns,
        _half_of_columns,
        "the same sums",
    ),
    Kind(
        "Context parallelism",
        "context_parallel_size=2",
        _all,
        _every_other_token,
        "projections and partial attention",
    ),
    Kind(
        "Pipeline parallelism",
        "pipeline_parallel_size=2",
        _half_of_layers,
        _all,
        "the residual stream, and tokens back",
        "of its layers",
    ),
    Kind("Replicas", "data_parallel_size=2", _all, _first_alone, "nothing: a sequence is on one"),
    Kind(
        "Prefill and decode apart",
        "data_parallel_size=2, prefill_replicas=1",
        _all,
        _all,
        "blocks of prompts, by host memory",
    ),
)


def draw() -> str:
    """The picture, as the text of an SVG file."""
    rows = -(-len(KINDS) // _COLUMNS)
    width, height = _COLUMNS * _PANEL + 16, rows * _HEIGHT + 40
    described = "; ".join(f"{kind.name} exchanges {kind.exchanged}" for kind in KINDS)
    body = "\n".join(f"  {line}" for line in _body(height))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
width="{width}" height="{height}" role="img" aria-labelledby="title description">
  <title id="title">{escape(TITLE)}</title>
  <desc id="description">{escape(described)}</desc>
  <style>{_STYLE}  </style>
  <rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>
{body}
</svg>
"""


def _body(height: int) -> Iterator[str]:
    for index, kind in enumerate(KINDS):
        yield from _panel(kind, 16 + index % _COLUMNS * _PANEL, index // _COLUMNS * _HEIGHT + 16)
    legend = "weights: layers down, heads and width (or experts) across; "
    legend += "KV cache: a sequence's tokens down, heads across"
    yield f'<text class="small" x="16" y="{height - 16}">{legend}</text>'


def _panel(kind: Kind, x: int, y: int) -> Iterator[str]:
    yield f'<text class="kind" x="{x}" y="{y + 12}">{escape(kind.name)}</text>'
    yield f'<text class="small" x="{x}" y="{y + 27}">{escape(kind.argument)}</text>'
    for device in range(2):
        left, top = x + device * (_DEVICE + 12), y + 36
        yield f'<rect class="device" x="{left}" y="{top}" width="{_DEVICE}" height="94" rx="4"/>'
        grids = (("weights", "weights", kind.weights), ("pages", kind.pages_of, kind.pages))
        for place, (fill, label, held) in enumerate(grids):
            first = left + 12 + place * (_GRID + 30)
            yield f'<text class="small" x="{first}" y="{top + 16}">{escape(label)}</text>'
            yield from _grid(fill, held, device, first, top + 24)
    yield f'<text class="small" x="{x}" y="{y + 147}">exchanged: {escape(kind.exchanged)}</text>'


def _grid(fill: str, held: Held, device: int, x: int, y: int) -> Iterator[str]:
    size = _CELL - _GAP
    for row in range(_CELLS):
        for column in range(_CELLS):
            shown = fill if held(device, row, column) else "absent"
            place = f'x="{x + column * _CELL}" y="{y + row * _CELL}"'
            yield f'<rect class="{shown}" {place} width="{size}" height="{size}" rx="2"/>'


if __name__ == "__main__":
    FILE.write_text(draw(), encoding="utf-8")
    print(FILE)
