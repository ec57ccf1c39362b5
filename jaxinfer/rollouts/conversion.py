"""Converts a trainer's parameters by compiled programs, into memory of the engine's old ones.

An update is one program, or one for each stage of a pipeline: all are compiled, or one fails to be,
before any of the old arrays is taken. An engine that starts has nothing to lose, and its weights of
codes and scales are made by a program for each shape, which all layers share: for XLA they are a
fourth of the work of one for all.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jaxinfer.model.architecture import abstract_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.quantized.params import quantize_weight
from jaxinfer.model.quantized.quantization import SCALE
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.sources import Assignment
from jaxinfer.rollouts.taking import taken
from jaxinfer.rollouts.targets import Target, targets_of
from jaxinfer.rollouts.trees import Leaves, leaves_by_path, nested


class MappedParams:
    """A trainer's parameters, with the mapping from them to the engine's.

    It is a `ParamsMaker` for an engine that starts, and a `ParamsWriter` for one that runs.

    Where the engine holds codes and scales, the program quantizes the trainer's weights, leaf by
    leaf (`quantize_weight`). The trainer's arrays are read and never donated; nothing of them is
    kept. Where they lie on other devices than the engine, all that are mapped are copied whole to
    each of its devices first.

    Args:
        tree: as for `leaves_by_path`.
        mapping: the source of each of the engine's parameters.
    """

    def __init__(self, tree: Any, mapping: ParamsMapping) -> None:
        self._leaves = leaves_by_path(tree)
        self._mapping = mapping
        self._assigned: tuple[Any, tuple[Assignment, ...]] = (None, ())

    def check(self, wanted: Any) -> None:
        """Check the mapping against the engine's parameters; raises as `assignments` does."""
        self._assignments(wanted)

    def describe(self) -> dict[str, str]:
        """A description of sources and arrays that differs whenever they differ."""
        sources = {f"the mapping of {path}": str(source) for path, source in self._mapping.sources}
        arrays = {f"params[{path}]": _described(leaf) for path, leaf in self._leaves.items()}
        return sources | {"stacked_axis": str(self._mapping.stacked_axis)} | arrays

    def write(self, wanted: Any, reusable: Any) -> dict[str, Any]:
        """The engine's parameters, as `wanted` describes them.

        Args:
            wanted: tree of `jax.ShapeDtypeStruct` with shardings.
            reusable: the engine's own arrays of the same tree, which are donated: the new ones lie
                in their memory. None takes new memory.

        Raises:
            ValueError, TypeError: as `check`; `reusable` is then as it was.
        """
        targets, found = targets_of(wanted), {}
        held = None if reusable is None else leaves_by_path(reusable)
        ready, groups = [], _by_devices(self._assignments(wanted), targets)
        for assigned, own in groups:
            used = _used(self._leaves, assigned, own[0].sharding)
            # The first call donates too, so that the second one runs the same program.
            old = jax.tree.leaves(_empty(own)()) if held is None else [held[p] for p in _paths(own)]
            program = _program(assigned, own)
            if len(groups) > 1:  # the first must not run before the last can
                program = program.lower(old, used).compile()
            ready.append((program, own, old, used))
        for program, own, old, used in ready:
            written = program(old, used)
            found |= {t.path: array for t, array in zip(own, written, strict=True)}
        return nested({target.path: found[target.path] for target in targets})

    def make(
        self, config: ModelConfig, dtype: DTypeLike | None, mesh: Mesh | None, rules: ShardingRules
    ) -> dict[str, Any]:
        """New parameters, for an engine that is about to start.

        Args:
            config: the model's shape.
            dtype: of every parameter that is not quantized; None is that of the embedding's source.
            mesh: the engine's devices; None is the mesh that the trainer's arrays lie on, if any.
            rules: the sharding of the model over the devices.

        Raises:
            ValueError, TypeError: as `check`.
        """
        mesh = mesh or _mesh_of(self._leaves)
        wanted = abstract_params(config, dtype or jnp.float32, mesh, rules)
        assignments = self._mapping.assignments(self._leaves, wanted)
        if dtype is None:
            embedding = next(a.path for a in assignments if a.target == "model.embed_tokens")
            wanted = abstract_params(config, self._leaves[embedding].dtype, mesh, rules)
        targets, found = targets_of(wanted), {}
        for assigned, own in _by_devices(assignments, targets):
            used = _used(self._leaves, assigned, own[0].sharding)
            found |= made(assigned, own, _on_devices(used, own[0].sharding))
        return nested({target.path: found[target.path] for target in targets})

    def _assignments(self, wanted: Any) -> tuple[Assignment, ...]:
        """The assignments of `wanted`, kept from `check` for `write` if both are of one engine."""
        if self._assigned[0] is not wanted:
            self._assigned = (wanted, self._mapping.assignments(self._leaves, wanted))
        return self._assigned[1]


def _by_devices(
    assignments: Sequence[Assignment], targets: Sequence[Target]
) -> list[tuple[tuple[Assignment, ...], tuple[Target, ...]]]:
    """All in groups that lie on the same devices: one, or one for each stage of a pipeline."""
    groups: dict[Any, list[tuple[Assignment, Target]]] = {}
    for each, target in zip(assignments, targets, strict=True):
        devices = None if target.sharding is None else tuple(target.sharding.mesh.devices.flat)
        groups.setdefault(devices, []).append((each, target))
    return [
        (tuple(each for each, _ in pairs), tuple(target for _, target in pairs))
        for pairs in groups.values()
    ]


def _paths(targets: Sequence[Target]) -> list[str]:
    """The paths of all arrays, in JAX's order."""
    return [
        each.path if name is None else f"{each.path}.{name}"
        for each in targets
        for name, _ in each.arrays
    ]


def _used(leaves: Leaves, assignments: Sequence[Assignment], sharding: Any) -> Leaves:
    """The arrays that are read, on the engine's devices."""
    if sharding is None:
        return {each.path: leaves[each.path] for each in assignments}
    devices = tuple(sharding.mesh.devices.flat)
    whole = NamedSharding(sharding.mesh, PartitionSpec())
    return {
        path: leaf if _lies_on(leaf := leaves[path], devices) else jax.device_put(leaf, whole)
        for path in dict.fromkeys(each.path for each in assignments)
    }


def _described(leaf: Any) -> str:
    """Dtype, shape and sharding; how this process's devices are numbered is left out."""
    sharding = getattr(leaf, "sharding", None)
    where = getattr(sharding, "spec", None) or type(sharding).__name__
    return f"{getattr(leaf, 'dtype', None)}{list(getattr(leaf, 'shape', ()))} {where}"


def _lies_on(leaf: Any, devices: tuple[Any, ...]) -> bool:
    """True if a program on these devices takes an array as it is: host memory, or in this order."""
    if isinstance(leaf, QuantizedLeaf):
        return all(_lies_on(each, devices) for each in leaf if each is not None)
    if not isinstance(leaf, jax.Array):
        return True
    if isinstance(leaf.sharding, NamedSharding) and isinstance(leaf.sharding.mesh, Mesh):
        return tuple(leaf.sharding.mesh.devices.flat) == devices
    return tuple(leaf.sharding.device_set) == devices


def _mesh_of(leaves: Leaves) -> Mesh | None:
    for leaf in leaves.values():
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


@functools.lru_cache(maxsize=16)
def _program(assignments: tuple[Assignment, ...], targets: tuple[Target, ...]) -> Any:
    """``(old arrays, sources by path) -> new arrays``; the old are donated, and not read."""

    def convert(old: list[jax.Array], sources: Leaves) -> list[Any]:
        del old
        converted, last = [], None
        for each, target in zip(assignments, targets, strict=True):
            leaf = sources[each.path]
            if target.form is not None:
                # One after the other, lest transposed weights of all layers be there at once.
                leaf, last = jax.lax.optimization_barrier((leaf, last))
            converted.append(_converted(leaf, each, target, each.layer))
            last = last if target.form is None else converted[-1][SCALE]
        return converted

    # keep_unused: otherwise JAX drops the old arrays from the program and donates nothing.
    return jax.jit(
        convert,
        donate_argnums=0,
        keep_unused=True,
        out_shardings=[target.shardings for target in targets],
    )


def made(
    assignments: Sequence[Assignment], targets: Sequence[Target], sources: Leaves
) -> dict[str, Any]:
    """New parameters by path; no source is donated."""
    work = list(zip(assignments, targets, strict=True))
    plain = [(each, target) for each, target in work if target.form is None]
    program = _program(tuple(each for each, _ in plain), tuple(target for _, target in plain))
    arrays = program([], {each.path: sources[each.path] for each, _ in plain})
    found = {target.path: array for (_, target), array in zip(plain, arrays, strict=True)}
    for each, target in work:
        if target.form is not None:
            quantize = _node_program(_unnamed(each), replace(target, path=""))
            layer = None if each.axis is None else np.int32(each.layer)
            found[target.path] = quantize(sources[each.path], _on_devices(layer, target.sharding))
    return found


@functools.lru_cache(maxsize=256)
def _node_program(each: Assignment, target: Target) -> Any:
    """``(source, layer) -> node``.

    Args:
        each: without what differs from layer to layer.
        target: without what differs from layer to layer.
    """

    def convert(source: Any, layer: jax.Array | None) -> Any:
        return _converted(source, each, target, layer)

    return jax.jit(convert, out_shardings=target.shardings)


def _unnamed(each: Assignment) -> Assignment:
    """What layers' assignments have in common."""
    return Assignment("", replace(each.source, path=""), "", 0, each.axis, 0)


def _on_devices(tree: Any, sharding: Any) -> Any:
    """With what is on the host copied once, although a layer's program may read a part of it."""
    whole = None if sharding is None else NamedSharding(sharding.mesh, PartitionSpec())
    return jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf, whole), tree
    )


@functools.lru_cache(maxsize=16)
def _empty(targets: tuple[Target, ...]) -> Any:
    """Memory of the right shapes to donate, for an engine that has none of its own to give."""

    def zeros() -> Any:
        return [
            each.held({name: jnp.zeros(x.shape, x.dtype) for name, x in each.arrays})
            for each in targets
        ]

    return jax.jit(zeros, out_shardings=[target.shardings for target in targets])


def _converted(leaf: Any, each: Assignment, target: Target, layer: Any) -> Any:
    if isinstance(leaf, QuantizedLeaf):
        parts = (x if x is None else _laid(x, each, layer) for x in leaf)
        return taken(QuantizedLeaf(*parts), target)
    leaf = _laid(leaf, each, layer)
    if each.source.part is not None:
        leaf = jax.lax.slice_in_dim(leaf, *each.source.part, axis=each.source.part_axis)
    leaf = leaf.reshape(target.shape)
    if each.source.scale is not None:
        leaf = leaf.astype(jnp.float32) * jnp.float32(each.source.scale)
    return leaf.astype(target.dtype) if target.form is None else quantize_weight(leaf, target.form)


def _laid(leaf: jax.Array, each: Assignment, layer: Any) -> jax.Array:
    """A layer's array with its dimensions in the engine's order."""
    if each.axis is not None:
        index = jax.lax.index_in_dim if isinstance(layer, int) else jax.lax.dynamic_index_in_dim
        leaf = index(leaf, layer, each.axis, keepdims=False)
    if each.source.split is not None:
        leaf = leaf.reshape(each.source.split)
    return leaf if each.source.transpose is None else leaf.transpose(each.source.transpose)
