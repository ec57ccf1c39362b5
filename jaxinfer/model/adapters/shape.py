"""Lays out an adapter's matrices as the slots want them, and checks that they fit the model."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.checks import show
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.groups import ADAPTED
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
            if (rank := matrices.shapes[0][0]) > self.ranks:
                raise ValueError(
                    f"adapter {show(name)}: {target} has rank {rank}, above "
                    f"max_lora_rank={self.ranks}; raise that"
                )
        on_device = all(isinstance(each.a, jax.Array) for each in found.values())
        build = _stacked_on_device if on_device else _stacked
        sizes = tuple((part, each, *shapes[each]) for part, each in ADAPTED)
        layers, dtype = self.config.num_hidden_layers, np.dtype(self.dtype)
        matrices, finite = build(dict(found), sizes, layers, self.ranks, dtype)
        wrong = [each for each in found if not finite[each.part, each.name][each.layer]]
        if wrong:
            first = wrong[0]
            raise ValueError(f"adapter {show(name)}: {first} holds NaN or infinity in {dtype.name}")
        return Adapter(name, next(_versions), path, matrices)


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
    if (b[0], a[1]) != (outputs, inputs):
        raise ValueError(
            f"{subject} maps {a[1]} inputs to {b[0]} outputs, and this model's "
            f"{inputs} to {outputs}; it is another model's"
        )


def _stacked(
    found: Mapping[Target, Matrices],
    sizes: Sequence[tuple[str, str, int, int]],
    layers: int,
    ranks: int,
    dtype: Any,
    xp: Any = np,
) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """The arrays of `describe_adapter`, and by projection in which layers they are finite.

    Args:
        found: matrices of the projections that are changed; all others are zero.
        sizes: part, name, outputs and inputs of each projection.
        xp: NumPy, or JAX's.
    """
    stacked: dict[str, Any] = {}
    finite: dict[tuple[str, str], Any] = {}
    for part, name, outputs, inputs in sizes:
        of_a, of_b = [], []
        for layer in range(layers):
            target = Target(layer, part, name)
            if (own := found.get(target)) is None:
                of_a.append(xp.zeros((ranks, inputs), dtype))
                of_b.append(xp.zeros((outputs, ranks), dtype))
                continue
            a, b = own.oriented()
            with np.errstate(over="ignore", invalid="ignore"):  # refused by the caller
                a = a.astype(np.float32).astype(dtype)
                b = (b.astype(np.float32) * xp.float32(own.scale)).astype(dtype)
            padding = ranks - len(a)
            of_a.append(xp.pad(a, ((0, padding), (0, 0))))
            of_b.append(xp.pad(b, ((0, 0), (0, padding))))
        a, b = xp.stack(of_a), xp.stack(of_b)
        stacked.setdefault(part, {})[name] = {"a": a, "b": b}
        # By NaN and infinity, ranks of zero would reach other tokens.
        finite[part, name] = xp.isfinite(a).all((1, 2)) & xp.isfinite(b).all((1, 2))
    return stacked, finite


def _stacked_on_device(
    found: Mapping[Target, Matrices], *sizes: Any
) -> tuple[dict[str, Any], dict[tuple[str, str], Any]]:
    """As `_stacked`, of JAX's arrays, by one program: nothing passes through the host."""
    arrays = [(each.a, each.b) for each in found.values()]
    scales = np.array([each.scale for each in found.values()], np.float32)
    kinds = tuple((target, each.transposed) for target, each in found.items())
    stacked, finite = _jitted(arrays, scales, kinds, *sizes)
    return stacked, dict(zip(_projections(sizes[0]), np.asarray(finite), strict=True))


@partial(jax.jit, static_argnames=("kinds", "sizes", "layers", "ranks", "dtype"))
def _jitted(
    arrays: Sequence[tuple[jax.Array, jax.Array]],
    scales: jax.Array,
    kinds: tuple[tuple[Target, tuple[bool, bool]], ...],
    sizes: Any,
    layers: int,
    ranks: int,
    dtype: Any,
) -> tuple[dict[str, Any], jax.Array]:
    each = zip(kinds, arrays, scales, strict=True)
    found = {target: Matrices(a, b, scale, turned) for (target, turned), (a, b), scale in each}
    stacked, finite = _stacked(found, sizes, layers, ranks, dtype, jnp)
    return stacked, jnp.stack([finite[each] for each in _projections(sizes)])


def _projections(sizes: Sequence[tuple[str, str, int, int]]) -> list[tuple[str, str]]:
    return [(part, name) for part, name, *_ in sizes]


def is_finite(array: Any) -> bool:
    """Whether no value is NaN or infinity."""
    return bool(np.isfinite(array.astype(np.float32)).all())
