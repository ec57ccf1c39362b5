"""A LoRA adapter as the engine keeps it. Nothing here imports NumPy or JAX."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Adapter:
    """One version of an adapter: loading it again makes another one.

    Requests hold the version that they began with, until they end.

    Attributes:
        name: unique among the loaded ones.
        version: unique in this process; cached blocks are shared within a version.
        path: the directory that it was read from; None for a caller's arrays.
        matrices: the arrays of `describe_adapter`: NumPy's, or JAX's where a caller gave these.
    """

    name: str
    version: int
    path: str | None
    matrices: Mapping[str, Any] = field(repr=False)
