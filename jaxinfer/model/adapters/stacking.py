"""Stacks an adapter's matrices as the slots want them, on the host or where its arrays lie."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxinfer.model.adapters.matrices import Matrices, Target

Stacked = tuple[dict[str, Any], Any]
"""The arrays of `describe_adapter`; and bool ``[projections, layers]``: whether they are finite."""
Stack = Callable[[Sequence[jax.Array], np.ndarray], Stacked]
"""Stacks A and B of each projection, one behind the other, with their scales, float32 ``[n]``."""
Targets = tuple[tuple[Target, tuple[bool, bool]], ...]
"""Projections, and whether the A of each, and its B, are transposed."""


@dataclass(frozen=True)
class Layout:
    """The form of all adapters of an engine, static in programs.

    Attributes:
        sizes: part, name, outputs and inputs of each projection.
        layers: of the model.
        ranks: r, the largest rank.
        dtype: of activations.
        places: shardings of the stacked arrays in the order of their tree, where arrays that lie on
            the one device of these are stacked for one engine alone.
    """

    sizes: tuple[tuple[str, str, int, int], ...]
    layers: int
    ranks: int
    dtype: np.dtype
    places: tuple[jax.sharding.Sharding, ...] = ()


def stacked(found: Mapping[Target, Matrices], layout: Layout, xp: Any = np) -> Stacked:
    """Matrices scaled, padded to r with zeros, and stacked by layer.

    Args:
        found: of the projections that are changed; all others are zero.
        xp: NumPy, or JAX's.
    """
    ranks, dtype = layout.ranks, layout.dtype
    result: dict[str, Any] = {}
    finite: list[Any] = []
    for part, name, outputs, inputs in layout.sizes:
        of_a, of_b = [], []
        for layer in range(layout.layers):
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
        result.setdefault(part, {})[name] = {"a": a, "b": b}
        # By NaN and infinity, ranks of zero would reach other tokens.
        finite.append(xp.isfinite(a).all((1, 2)) & xp.isfinite(b).all((1, 2)))
    return result, xp.stack(finite)


def stacked_on_device(found: Mapping[Target, Matrices], layout: Layout) -> Stacked:
    """As `stacked`, of JAX's arrays, by one program: nothing passes through the host."""
    arrays = tuple(array for each in found.values() for array in (each.a, each.b))
    scales = np.array([each.scale for each in found.values()], np.float32)
    return program_of(found, layout)(arrays, scales)


def program_of(found: Mapping[Target, Matrices], layout: Layout) -> Stack:
    """What stacks such matrices, of JAX's arrays: compiled once for their shapes."""
    targets = tuple((target, each.transposed) for target, each in found.items())
    first = next(iter(found.values()))
    devices = {device for place in layout.places for device in place.device_set}
    is_placed = len(devices) == 1 and first.a.sharding.device_set == devices
    return _jitted(targets, layout, is_placed)


@functools.lru_cache(maxsize=16)
def _jitted(targets: Targets, layout: Layout, is_placed: bool) -> Stack:
    def run(arrays: Sequence[jax.Array], scales: jax.Array) -> Stacked:
        each = zip(targets, arrays[::2], arrays[1::2], scales, strict=True)
        found = {target: Matrices(a, b, scale, turned) for (target, turned), a, b, scale in each}
        return stacked(found, layout, jnp)

    if not is_placed:
        return jax.jit(run)
    empty, _ = jax.eval_shape(lambda: stacked({}, layout, jnp))
    places = jax.tree.unflatten(jax.tree.structure(empty), layout.places)
    return jax.jit(run, out_shardings=(places, None))
