"""What an adapter has of each projection, as files and trainers give it."""

import math
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A projection that an adapter changes.

    Attributes:
        part: "self_attn" or "mlp".
        name: such as "q_proj".
    """

    layer: int
    part: str
    name: str

    def __str__(self) -> str:
        return f"layers.{self.layer}.{self.part}.{self.name}"


class Matrices(NamedTuple):
    """What an adapter has of one projection: it adds ``scale * b @ a @ x``.

    Attributes:
        a: ``[r, I]``, NumPy's or JAX's; transposed ``[inputs..., r]``.
        b: ``[O, r]``; transposed ``[r, outputs...]``.
        scale: a number.
        transposed: whether `a`, and whether `b`, are stored so, as qwix does.
    """

    a: Any
    b: Any
    scale: Any
    transposed: tuple[bool, bool] = (False, False)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of `oriented`."""
        a, b = self.a.shape, self.b.shape
        if self.transposed[0] and len(a) > 1:
            a = (a[-1], math.prod(a[:-1]))
        if self.transposed[1] and len(b) > 1:
            b = (math.prod(b[1:]), b[0])
        return a, b

    def oriented(self) -> tuple[Any, Any]:
        """Both, ``[r, I]`` and ``[O, r]``."""
        (a, b), (of_a, of_b) = (self.a, self.b), self.shapes
        return (
            a.reshape(of_a[::-1]).T if self.transposed[0] else a,
            b.reshape(of_b[::-1]).T if self.transposed[1] else b,
        )
