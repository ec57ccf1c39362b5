"""The frame of an SVG picture: title, page, and colours that follow a light or dark scheme.

Plain strings: a picture needs no package, and is readable by itself in a README.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_PAGE_INK_RULE = ("#ffffff", "#24292f", "#d0d7de")
_DARK_PAGE_INK_RULE = ("#0d1117", "#e6edf3", "#30363d")


@dataclass(frozen=True)
class Palette:
    """The colours of what a picture shows, in both schemes; class ``c0`` is filled with the first.

    Attributes:
        light: on a white page.
        dark: on a dark page, as many.
    """

    light: Sequence[str]
    dark: Sequence[str]


def picture(
    width: int,
    height: int,
    title: str,
    body: Iterable[str],
    palette: Palette,
    *,
    heading: bool = True,
    style: str = "",
) -> str:
    """A whole SVG.

    Args:
        width: in pixels.
        height: in pixels.
        title: what it shows, for readers who don't see it.
        body: its elements. Beside the palette's, there are the classes ``rule``, a thin line, and
            ``roof``, a strong one; ``s0`` is a line in the palette's first colour.
        palette: its colours.
        heading: whether the title is written at the top, too.
        style: CSS for classes of its own.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" font-family="sans-serif" '
            'font-size="12">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}{_colours(palette)}</style>",
            f'<rect class="page" width="{width}" height="{height}"/>',
            *([text(16, 24, title, weight="bold")] if heading else []),
            *body,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", weight: str = "normal") -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{escape(words)}</text>"
    )


def _colours(palette: Palette) -> str:
    light = _scheme(palette.light, *_PAGE_INK_RULE)
    dark = _scheme(palette.dark, *_DARK_PAGE_INK_RULE)
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"


def _scheme(colours: Sequence[str], page: str, ink: str, rule: str) -> str:
    classes = "".join(f".c{i}{{fill:{c}}}.s{i}{{stroke:{c}}}" for i, c in enumerate(colours))
    lines = f".rule{{stroke:{rule}}}.roof{{stroke:{ink};fill:none;stroke-width:1.5}}"
    return f".page{{fill:{page}}}text{{fill:{ink}}}{lines}{classes}"
