"""A projection's weight as one value: what the ops of `matmul/op.py` take and choose kernels by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Linear:
    """The weight of a projection, a pytree.

    Parameter trees hold plain arrays; `linear_of` wraps one where a layer reads it.

    Attributes:
        weight: floating-point, ``[out, in]`` as Hugging Face stores it; in a pytree of shardings or
            shapes, what stands for it there.
    """

    weight: Any

    def of_outputs(self, select: Callable[[jax.Array], jax.Array]) -> "Linear":
        """The projection to the outputs that `select` takes from an array ``[O, ...]``."""
        return Linear(select(self.weight))


def linear_of(layer: Mapping[str, Any], name: str) -> Linear:
    """The projection `name`, such as "q_proj", from the subtree that holds its weight.

    Raises:
        KeyError: the subtree has no such projection.
    """
    return Linear(layer[name])
