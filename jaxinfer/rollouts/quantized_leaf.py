"""A trainer's weight that is quantized already, as qwix's `QArray` is."""

from typing import Any, NamedTuple


class QuantizedLeaf(NamedTuple):
    """An array as codes and scales: ``(qvalue - zero_point) * scale``.

    Attributes:
        qvalue: codes, of the array's shape.
        scale: of as many dimensions, each of which divides that of the codes.
        zero_point: of scale's shape; None for symmetric codes.
    """

    qvalue: Any
    scale: Any
    zero_point: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array that it stands for."""
        return tuple(self.qvalue.shape)

    @property
    def dtype(self) -> Any:
        """Of the codes."""
        return self.qvalue.dtype

    @property
    def sharding(self) -> Any:
        """Of the codes."""
        return getattr(self.qvalue, "sharding", None)


def gathered(leaves: dict[str, Any]) -> dict[str, Any]:
    """Leaves by path in which the parts of a `QArray` are one, at its own path.

    Args:
        leaves: of a tree, with ``X.qvalue``, ``X.scale`` and perhaps ``X.zero_point``.
    """
    found: dict[str, Any] = {}
    for path, leaf in leaves.items():
        base, _, part = path.rpartition(".")
        if f"{base}.qvalue" not in leaves or f"{base}.scale" not in leaves:
            found[path] = leaf
        elif part == "qvalue":
            # A variable of Flax, and what qwix keeps beside an array, stand in between.
            own = base.removesuffix(".array").removesuffix(".value").removesuffix(".weight")
            zero = leaves.get(f"{base}.zero_point")
            found[own] = QuantizedLeaf(leaf, leaves[f"{base}.scale"], zero)
    return found
