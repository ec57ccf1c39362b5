"""Checks that an adapter's matrices fit the model, and lays them out as the slots want them."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checks import show
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.groups import ADAPTED
from jaxinfer.model.adapters.matrices import Matrices, Target
from jaxinfer.model.adapters.stacking import Layout, Stack, program_of, stacked, stacked_on_device
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import projection_shapes

_versions = itertools.count(1)


@dataclass(frozen=True)
class AdapterShape:
    """What an engine's adapters must fit.

    Attributes:
        config: the model's shape.
        dtype: of activations.
        ranks: r, the largest rank.
        places: as of `Layout`.
    """

    config: ModelConfig
    dtype: Any
    ranks: int
    places: tuple[jax.sharding.Sharding, ...] = ()

    @cached_property
    def layout(self) -> Layout:
        """The form of what adapters become."""
        shapes = projection_shapes(self.config)
        sizes = tuple((part, each, *shapes[each]) for part, each in ADAPTED)
        layers, dtype = self.config.num_hidden_layers, np.dtype(self.dtype)
        return Layout(sizes, layers, self.ranks, dtype, self.places)

    def adapter(self, name: str, path: str | None, found: Mapping[Target, Matrices]) -> Adapter:
        """An adapter of these matrices, scaled, padded to r with zeros.

        Args:
            path: where they are from; None for a caller's arrays.
            found: of the projections that it changes.

        Raises:
            ValueError: they are of another model, have too large a rank, or hold NaN or infinity;
                names the projection.
        """
        if not found:
            raise ValueError(f"adapter {show(name)} changes no projection of any layer")
        for target, matrices in found.items():
            check_fits(name, target, matrices, self.config)
            check_rank(name, target, matrices, self.ranks)
        on_device = all(isinstance(each.a, jax.Array) for each in found.values())
        build = stacked_on_device if on_device else stacked
        matrices, finite = build(found, self.layout)
        rows = {each: row for row, each in enumerate(ADAPTED)}
        finite = np.asarray(finite)
        wrong = [each for each in found if not finite[rows[each.part, each.name], each.layer]]
        if wrong:
            dtype = self.layout.dtype.name
            raise ValueError(f"adapter {show(name)}: {wrong[0]} holds NaN or infinity in {dtype}")
        return Adapter(name, next(_versions), path, matrices)

    def program_of(self, found: Mapping[Target, Matrices]) -> Stack:
        """What makes the matrices of an adapter of other arrays like these, which fit."""
        return program_of(found, self.layout)

    def again(self, name: str, stack: Stack, arrays: Any, scale: float) -> Adapter | None:
        """A caller's adapter of arrays of which others with their shapes fitted.

        Args:
            stack: of `program_of`.
            arrays: A and B of each projection, one behind the other.
            scale: of all.

        Returns:
            None if they hold NaN or infinity.

        Raises:
            RuntimeError, ValueError: an array was deleted, or they lie on several devices.
        """
        matrices, finite = stack(arrays, np.full(len(arrays) // 2, scale, np.float32))
        if not np.asarray(finite).all():
            return None
        return Adapter(name, next(_versions), None, matrices)


def check_fits(name: str, target: Target, matrices: Matrices, config: ModelConfig) -> None:
    """Check that an adapter's matrices of a projection are of a model of this shape.

    Args:
        name: the adapter's, for the message.

    Raises:
        ValueError: they are of another model; names the projection.
    """
    subject, layers = f"adapter {show(name)}: {target}", config.num_hidden_layers
    if target.layer >= layers:
        raise ValueError(f"{subject}: this model has {layers} layers; it is another model's")
    if (target.part, target.name) not in ADAPTED:
        known = ", ".join(".".join(each) for each in ADAPTED)
        raise ValueError(f"{subject} can't be adapted; what can: {known}")
    (a, b), (outputs, inputs) = matrices.shapes, projection_shapes(config)[target.name]
    if len(a) != 2 or len(b) != 2 or a[0] != b[1]:
        raise ValueError(f"{subject}: lora_A {a} and lora_B {b} are no pair")
    if a[0] == 0:
        raise ValueError(f"{subject}: lora_A {a} and lora_B {b} have rank 0; leave them out")
    for which, matrix in (("lora_A", matrices.a), ("lora_B", matrices.b)):
        if not jnp.issubdtype(matrix.dtype, jnp.floating):
            raise ValueError(f"{subject}: {which} has dtype {matrix.dtype}; give floating point")
    if (b[0], a[1]) != (outputs, inputs):
        raise ValueError(
            f"{subject} maps {a[1]} inputs to {b[0]} outputs, and this model's "
            f"{inputs} to {outputs}; it is another model's"
        )


def check_rank(name: str, target: Target, matrices: Matrices, most: int) -> None:
    """Raise ValueError if an adapter's matrices of a projection have a rank above `most`."""
    if (rank := matrices.shapes[0][0]) > most:
        raise ValueError(
            f"adapter {show(name)}: {target} has rank {rank}, above max_lora_rank={most}; raise "
            "that"
        )


def is_finite(array: Any) -> bool:
    """Whether no value is NaN or infinity."""
    return bool(np.isfinite(array.astype(np.float32)).all())
