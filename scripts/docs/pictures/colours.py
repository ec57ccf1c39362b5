"""The colours of a step's parts, on the device and on the host."""

from jaxinfer.profiling.parts import HOST_SPANS, OTHER, PARTS
from jaxinfer.profiling.svg import Palette

_NAMES = (*PARTS, OTHER, *HOST_SPANS)

PART_COLOURS = Palette(
    light=(
        *("#7b8794", "#94690d", "#2a6fc9", "#16805d", "#c8501e"),
        *("#5a9bd8", "#7a4bbf", "#b52f6b", "#3f8f9b", "#b9c0c8"),
        *("#4a5560", "#8b6d3f", "#4f6f9c", "#d5dbe1", "#8c6aa0"),
    ),
    dark=(
        *("#a3adb8", "#e0b659", "#7ab0f2", "#5fcfa6", "#f29a6e"),
        *("#a6cdf5", "#bda0ee", "#f088b4", "#74c7d3", "#59626c"),
        *("#c3ccd5", "#c9a876", "#86a5d1", "#3a424b", "#bf9fd2"),
    ),
)
"""Parts of the model, what belongs to none, and the host's spans, in this order."""


def colour_class(name: str) -> str:
    """The class that fills what belongs to a part, or to a span of the host."""
    return f"c{_NAMES.index(name)}"
