"""Draws `docs/figures/who-holds-what.svg`: the place of each array during reinforcement learning.

Run it: `python -m scripts.docs.who_holds_what`. It is drawn by hand, since Matplotlib's pictures
have no colours that follow the reader's light or dark screen.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

FILE = Path(__file__).resolve().parents[2] / "docs" / "figures" / "who-holds-what.svg"
TITLE = "Which arrays are on the devices in a step of reinforcement learning"

PHASES = (
    ("rollout", ""),
    ("sleep()", ""),
    ("trainer's step", ""),
    ("wake_up", '(["weights"])'),
    ("update_params", "(tree, mapping)"),
    ("wake_up", '(["kv_cache"])'),
)
END = len(PHASES)
SYNC = 4

_LEFT, _TOP, _COLUMN, _ROW, _BAR = 216, 66, 104, 32, 18
_WIDTH = _LEFT + _COLUMN * END + 16

_STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 12px system-ui, sans-serif }
  .call { font: 11px ui-monospace, monospace; text-anchor: middle }
  .owner { font-weight: 600 }
  .inside { fill: #ffffff; font-size: 11px; text-anchor: middle }
  .rule { stroke: #d0d7de }
  .trainer { fill: #bf5700 }
  .engine { fill: #0969da }
  .host { fill: none; stroke: #0969da; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .flow { stroke: #1f2328; stroke-width: 1.5; fill: none }
  .head { fill: #1f2328 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d }
    text { fill: #e6edf3 }
    .rule { stroke: #3d444d }
    .inside { fill: #0d1117 }
    .trainer { fill: #f0883e }
    .engine { fill: #58a6ff }
    .host { stroke: #58a6ff }
    .flow { stroke: #e6edf3 }
    .head { fill: #e6edf3 }
  }
"""


class Span(NamedTuple):
    """From the beginning of one phase to that of another, an array is somewhere."""

    first: int
    end: int
    kind: str


class Row(NamedTuple):
    """An array, or several that come and go together."""

    owner: str
    label: str
    spans: tuple[Span, ...]


ROWS = (
    Row("trainer", "optimizer's state", (Span(0, END, "trainer"),)),
    Row("", "gradients, activations", (Span(2, 3, "trainer"),)),
    Row("", "parameters", (Span(0, END, "trainer"),)),
    Row(
        "engine",
        "weights, level 1",
        (Span(0, 1, "engine"), Span(1, 3, "host"), Span(3, END, "engine")),
    ),
    Row("", "weights, level 2", (Span(0, 1, "engine"), Span(SYNC, END, "engine"))),
    Row("", "KV cache, slots", (Span(0, 1, "engine"), Span(5, END, "engine"))),
)
_PARAMETERS, _LEVEL_1, _LEVEL_2 = 2, 3, 4
_HEIGHT = _TOP + _ROW * len(ROWS) + 52


def draw() -> str:
    """The picture, as the text of an SVG file."""
    description = "; ".join(_in_words(row) for row in ROWS)
    body = "\n".join(f"  {line}" for line in _body())
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" \
width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-labelledby="title description">
  <title id="title">{escape(TITLE)}</title>
  <desc id="description">{escape(description)}</desc>
  <style>{_STYLE}  </style>
  <rect class="page" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="6"/>
{body}
</svg>
"""


def _body() -> Iterator[str]:
    bottom = _TOP + _ROW * len(ROWS)
    for i, (call, arguments) in enumerate(PHASES):
        middle = _x(i) + _COLUMN // 2
        lines = [call, arguments] if arguments else [call]
        for line, y in zip(lines, (26, 42) if arguments else (34,), strict=True):
            yield f'<text class="call" x="{middle}" y="{y}">{escape(line)}</text>'
        yield f'<line class="rule" x1="{_x(i)}" y1="14" x2="{_x(i)}" y2="{bottom}"/>'
    for i, row in enumerate(ROWS):
        yield from _row(i, row)
    yield from _flow()
    yield from _legend(bottom + 30)


def _row(i: int, row: Row) -> Iterator[str]:
    y = _y(i)
    if row.owner and i:
        yield f'<line class="rule" x1="16" y1="{y - 6}" x2="{_WIDTH - 16}" y2="{y - 6}"/>'
    if row.owner:
        yield f'<text class="owner" x="16" y="{y + 13}">{row.owner}</text>'
    yield f'<text x="74" y="{y + 13}">{escape(row.label)}</text>'
    for span in row.spans:
        yield _bar(span.kind, _x(span.first) + 2, y, _COLUMN * (span.end - span.first) - 4)


def _flow() -> Iterator[str]:
    """What a sync reads and writes."""
    x = _x(SYNC) + _COLUMN // 2
    start, end = _y(_PARAMETERS) + _BAR, _y(_LEVEL_1)
    yield f'<path class="flow" d="M{x} {start} V{end - 5}"/>'
    yield f'<path class="head" d="M{x - 4} {end - 8} h8 l-4 8 z"/>'
    for row, text in ((_LEVEL_1, "overwritten"), (_LEVEL_2, "in new memory")):
        yield f'<text class="inside" x="{x}" y="{_y(row) + 13}">{text}</text>'


def _legend(y: int) -> Iterator[str]:
    for kind, x, text in (
        ("trainer", _LEFT, "the trainer's, on the devices"),
        ("engine", _LEFT + 220, "the engine's, on the devices"),
        ("host", _LEFT + 436, "in pinned host memory"),
    ):
        yield _bar(kind, x, y - 13, 24)
        yield f'<text x="{x + 32}" y="{y}">{text}</text>'


def _bar(kind: str, x: int, y: int, width: int) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{_BAR}" rx="3"/>'


def _in_words(row: Row) -> str:
    parts = [
        f"{'in pinned host memory ' if span.kind == 'host' else ''}{_phases(span)}"
        for span in row.spans
    ]
    return f"{row.label}: {', '.join(parts)}"


def _phases(span: Span) -> str:
    first, last = (" ".join(PHASES[i]).strip() for i in (span.first, span.end - 1))
    if (span.first, span.end) == (0, END):
        return "always"
    return first if first == last else f"from {first} to {last}"


def _x(phase: int) -> int:
    return _LEFT + _COLUMN * phase


def _y(row: int) -> int:
    return _TOP + _ROW * row


if __name__ == "__main__":
    FILE.write_text(draw())
