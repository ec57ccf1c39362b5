"""Lays out an adapter's matrices as the slots want them, and checks that they fit the model."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxinfer.checks import show
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.device_slots import ADAPTED
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import projection_shapes

_versions = itertools.count(1)


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
        a: ``[r, I]``.
        b: ``[O, r]``.
    """

    a: np.ndarray
    b: np.ndarray
    scale: float


@dataclass(frozen=True)
class AdapterShape:
    """What an engine's adapters must fit.

    Attributes:
        config: the model's shape.
        dtype: of activations.
        ranks: r, the largest rank.
    """

    config: ModelConfig
    dtype: Any
    ranks: int

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
        shapes = projection_shapes(self.config)
        for target, matrices in found.items():
            check_fits(name, target, matrices, self.config)
            if (rank := matrices.a.shape[0]) > self.ranks:
                raise ValueError(
                    f"adapter {show(name)}: {target} has rank {rank}, above "
                    f"max_lora_rank={self.ranks}; raise that"
                )
        layers: dict[str, Any] = {}
        for layer in range(self.config.num_hidden_layers):
            parts = layers[str(layer)] = {}
            for part, projection in ADAPTED:
                own = found.get(Target(layer, part, projection))
                padded = self._padded(own, shapes[projection])
                if own is not None and not all(map(is_finite, padded.values())):
                    raise ValueError(
                        f"adapter {show(name)}: {Target(layer, part, projection)} holds NaN or "
                        f"infinity in {np.dtype(self.dtype).name}"
                    )
                parts.setdefault(part, {})[projection] = padded
        return Adapter(name, next(_versions), path, layers)

    def _padded(self, own: Matrices | None, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        a = np.zeros((self.ranks, shape[1]), self.dtype)
        b = np.zeros((shape[0], self.ranks), self.dtype)
        if own is not None:
            rank = own.a.shape[0]
            with np.errstate(over="ignore", invalid="ignore"):  # refused by the caller
                a[:rank] = own.a.astype(np.float32)
                b[:, :rank] = own.b.astype(np.float32) * np.float32(own.scale)
        return {"a": a, "b": b}


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
    (a, b, _), (outputs, inputs) = matrices, projection_shapes(config)[target.name]
    if a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise ValueError(f"{subject}: lora_A {a.shape} and lora_B {b.shape} are no pair")
    if (b.shape[0], a.shape[1]) != (outputs, inputs):
        raise ValueError(
            f"{subject} maps {a.shape[1]} inputs to {b.shape[0]} outputs, and this model's "
            f"{inputs} to {outputs}; it is another model's"
        )


def is_finite(array: np.ndarray) -> bool:
    """Whether no value is NaN or infinity, by which ranks of zero would reach other tokens."""
    return bool(np.isfinite(array.astype(np.float32)).all())
