"""How the tokens of sequences lie on the devices, as a value of the step."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax

from jaxinfer.kernels.attention.pages import Pages


@runtime_checkable
class Sequences(Protocol):
    """Passes a step's tokens through the layers, and attends; hashable, told apart by its `repr`.

    Both functions have the signatures of those of `steps.py` with their names.
    """

    @property
    def run_layers(self) -> Callable[..., tuple[tuple[Any, ...], jax.Array]]:
        """The pages, and the residual stream of the wanted tokens on every device."""
        ...

    @property
    def write_and_attend(self) -> Callable[..., tuple[jax.Array, Pages]]:
        """Attention of the tokens that this device computes; and the pages with keys and values."""
        ...
