"""Experts in slots of devices, by a plan that may change: their weights, and tables of replicas.

A model's own tree has the experts of a layer in order, `[X, ...]`. The engine's has them by slot,
`[P, ...]`, redundant ones among them, and beside them a table of each expert's slots, `replicas`,
which the layer reads: another plan is other arrays for the same programs.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxinfer.errors import StepError
from jaxinfer.model.checkpoint.parameter_names import flatten, unflatten
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.degrees import check_redundant_experts
from jaxinfer.model.expert_placement import in_order, replica_table
from jaxinfer.model.sharding import ShardingRules, num_expert_groups
from jaxinfer.serving.runner.device_params import check_like

_EXPERTS = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.")


class PlacedExperts:
    """The slots of a model's experts, in the layers that have some.

    Args:
        config: the model's shape.
        mesh: the engine's devices, of one process.
        rules: put experts on an axis of it.
        num_redundant: R.

    Attributes:
        slots: logical expert of each slot, int32 `[L, P]`, by layers with experts.
        layers: their indices in the model.
        num_layers: of the model, those without experts among them.
        num_experts: X.
        num_groups: G, of devices.
        num_redundant: R.

    Raises:
        ValueError: as `check_redundant_experts`.
    """

    def __init__(
        self, config: ModelConfig, mesh: Mesh, rules: ShardingRules, num_redundant: int
    ) -> None:
        assert config.experts is not None
        self.num_groups, self.num_redundant = num_expert_groups(mesh, rules), num_redundant
        check_redundant_experts(self.num_groups, num_redundant)
        dense, self.num_experts = config.experts.dense_layers, config.experts.num_experts
        self.num_layers = config.num_hidden_layers
        self.layers = [i for i in range(self.num_layers) if i not in dense]
        slots = in_order(self.num_experts, self.num_groups, num_redundant)
        self.slots = np.stack([slots] * len(self.layers))
        self._mesh, self._axis = mesh, rules.experts
        self._logical: Mapping[str, Any] = {}
        self._specs: Mapping[str, PartitionSpec] = {}

    def at_start(
        self, params: Mapping[str, Any], logical: Mapping[str, Any], *, owned: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The engine's tree of a model's own, and its description.

        Args:
            params: placed as `logical` describes it.
            logical: tree of `jax.ShapeDtypeStruct` with shardings.
            owned: each array of experts is deleted once its slots are filled.
        """
        self._logical = logical
        self._specs = {path: leaf.sharding.spec for path, leaf in flatten(logical)}

        def fill(path: str, leaf: jax.Array, slots: np.ndarray) -> jax.Array:
            filled = jax.block_until_ready(self._take(path, leaf, slots))
            if owned:
                leaf.delete()
            return filled

        placed = self._rebuilt(params, fill, self.slots, self.slots, others=_same)
        return placed, jax.tree.map(_describe, placed)

    def written(self, params: Mapping[str, Any]) -> "PlacedParams":
        """A model's own tree, for `Runner.update_params`.

        Raises:
            ValueError: names the first leaf that differs from the model's, or lies elsewhere.
            TypeError: a leaf is no array.
        """
        check_like(params, self._logical, placed=True)
        return PlacedParams(self, params)

    def copied(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The engine's tree of a model's own, which stays its owner's."""
        return self._rebuilt(params, self._take, self.slots, self.slots, others=_copy)

    def moved(self, params: Mapping[str, Any], slots: np.ndarray, *, owned: bool) -> dict[str, Any]:
        """The engine's tree with experts in other slots, for which their old arrays are donated.

        Args:
            params: the engine's.
            slots: `[L, P]`, as `balance` gives them.
            owned: whether all else is the engine's, and need not be copied.
        """
        places = np.stack([_places(*each) for each in zip(self.slots, slots, strict=True)])
        move = functools.partial(self._take, donate=True)
        others = _same if owned else _copy
        moved = self._rebuilt(params, move, places, slots, others=others)
        self.slots = slots
        return moved

    def _rebuilt(
        self,
        params: Mapping[str, Any],
        change: Callable[[str, jax.Array, np.ndarray], jax.Array],
        places: np.ndarray,
        slots: np.ndarray,
        others: Callable[[jax.Array], jax.Array],
    ) -> dict[str, Any]:
        """A tree with experts changed, by `places` of their layer, and with the tables of slots."""
        own, whole = dict(zip(self.layers, places, strict=True)), PartitionSpec()
        leaves = {}
        for path, leaf in flatten(params):
            found = _EXPERTS.match(path)
            leaves[path] = change(path, leaf, own[int(found[1])]) if found else others(leaf)
        for layer, each in zip(self.layers, slots, strict=True):
            # At most all redundant experts are replicas of one.
            table = replica_table(each, self.num_experts, 1 + self.num_redundant)
            leaves[f"model.layers.{layer}.mlp.replicas"] = jax.device_put(
                table, NamedSharding(self._mesh, whole)
            )
        return unflatten(leaves)

    def _take(
        self, path: str, leaf: jax.Array, places: np.ndarray, donate: bool = False
    ) -> jax.Array:
        take = _taker(self._mesh, self._specs[path], self._axis, donate)
        return take(leaf, jnp.asarray(places, jnp.int32))


class PlacedParams:
    """A model's own tree as a `ParamsWriter`, for an engine that has experts in slots."""

    def __init__(self, placed: PlacedExperts, params: Mapping[str, Any]) -> None:
        self._placed, self._params = placed, params

    def write(
        self, wanted: Mapping[str, Any], reusable: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The engine's parameters, in new memory: the old ones are there until the next step."""
        return self._placed.copied(self._params)

    def describe(self) -> dict[str, str]:
        """Nothing: the engine is of one process."""
        return {}


class MovedExperts:
    """The engine's own parameters with experts in other slots, as a `ParamsWriter`.

    All of them are the engine's afterwards: of a caller's, all but the experts are copied.
    """

    def __init__(self, placed: PlacedExperts, params: Mapping[str, Any], slots: np.ndarray) -> None:
        self._placed, self._params, self._slots = placed, params, slots

    def write(
        self, wanted: Mapping[str, Any], reusable: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The engine's parameters; the old arrays of experts are gone.

        Raises:
            StepError: moving failed when some of them were.
        """
        model = {name: self._params[name] for name in wanted}
        try:
            return self._placed.moved(model, self._slots, owned=reusable is not None)
        except Exception as error:
            if any(leaf.is_deleted() for leaf in jax.tree.leaves(model)):
                raise StepError(f"the weights were lost while being moved: {error}") from error
            raise

    def describe(self) -> dict[str, str]:
        """Nothing: the engine is of one process."""
        return {}


@functools.lru_cache(maxsize=64)
def _taker(mesh: Mesh, spec: PartitionSpec, axis: str, donate: bool) -> Any:
    """A program that fills slots `[P, ...]` from places `[P]` of an array split over `axis`.

    Every device gathers the array, whole but for its share of the width, and takes its own part.
    """

    def take(leaf: jax.Array, places: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(leaf, axis, axis=0, tiled=True)
        num_own = places.shape[0] // jax.lax.axis_size(axis)
        first = jax.lax.axis_index(axis) * num_own
        return whole[jax.lax.dynamic_slice_in_dim(places, first, num_own)]

    split = jax.shard_map(
        take, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False
    )
    return jax.jit(split, donate_argnums=(0,) if donate else ())


def _places(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """For each new slot a slot that has its expert now: the same one if it can be."""
    _, first = np.unique(old, return_index=True)
    return np.where(old == new, np.arange(len(old)), first[new])


def _same(leaf: jax.Array) -> jax.Array:
    return leaf


def _copy(leaf: jax.Array) -> jax.Array:
    return jax.device_put(leaf, leaf.sharding, may_alias=False)


def _describe(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
