"""What a trainer's parameters become: each of an engine's arrays, or nodes of codes and scales."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxinfer.model.quantized.quantization import (
    INPUT_SCALE,
    Quantization,
    plain_path,
)
from jaxinfer.rollouts.trees import leaves_by_path


@dataclass(frozen=True)
class Target:
    """A parameter of an engine's by its path in a plain tree. Hashable.

    Attributes:
        shape: of the plain array, ``[out, in]`` of a projection.
        arrays: what the engine holds: one array with no name, or those of a node by name, in JAX's
            order of a dictionary.
        form: of the node; None for a plain array.
    """

    path: str
    shape: tuple[int, ...]
    arrays: tuple[tuple[str | None, jax.ShapeDtypeStruct], ...]
    form: Quantization | None = None

    @property
    def dtype(self) -> Any:
        """Of the one array; None of a node, which takes any floating-point weight."""
        return self.arrays[0][1].dtype if self.form is None else None

    @property
    def sharding(self) -> Any:
        """Of the first array: all lie on the same devices."""
        return self.arrays[0][1].sharding

    def held(self, of_array: Mapping[str | None, Any]) -> Any:
        """What the engine's tree holds here, of values by the arrays' names."""
        if self.form is None:
            return of_array[None]
        return {name: of_array[name] for name, _ in self.arrays}

    @property
    def shardings(self) -> Any:
        """Of what it holds."""
        return self.held({name: array.sharding for name, array in self.arrays})


def targets_of(wanted: Any) -> tuple[Target, ...]:
    """The parameters of an engine's tree, in JAX's order, which donated arrays have to match.

    Args:
        wanted: tree of `jax.ShapeDtypeStruct`.

    Raises:
        ValueError: a node has a scale of inputs from a checkpoint, which no trainer's weights give.
    """
    found: dict[str, dict[str | None, jax.ShapeDtypeStruct]] = {}
    for path, like in leaves_by_path(wanted).items():
        plain = plain_path(path)
        found.setdefault(plain, {})[None if plain == path else path.rpartition(".")[2]] = like
    return tuple(_target(path, arrays) for path, arrays in found.items())


def _target(path: str, arrays: dict[str | None, jax.ShapeDtypeStruct]) -> Target:
    if None in arrays:
        return Target(path, tuple(arrays[None].shape), tuple(arrays.items()))
    if INPUT_SCALE in arrays:
        raise ValueError(
            f"{path} has a scale of its inputs from a checkpoint, which a trainer's weights don't "
            "give; use a model whose inputs are quantized for each token, or not at all"
        )
    node = {str(name): like for name, like in arrays.items()}
    form, shape = Quantization.of_node({name: (x.shape, str(x.dtype)) for name, x in node.items()})
    return Target(path, shape, tuple(sorted(node.items())), form)
