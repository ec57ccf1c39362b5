"""Checks a parameter tree leaf by leaf, and copies to the devices only leaves not there yet."""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxinfer.model.architecture import abstract_params, activation_dtype
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.serving.programs.upload import upload


@runtime_checkable
class ParamsWriter(Protocol):
    """Parameters that are still to be computed, into memory of the old ones where allowed."""

    def write(
        self, wanted: Mapping[str, Any], reusable: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The parameters as `wanted` describes them; `reusable` is donated unless it is None."""
        ...

    def describe(self) -> dict[str, str]:
        """Properties that determine the conversion program, for several processes to compare."""
        ...


class PlacedParams:
    """A tree as the engine has it, wherever its arrays lie; a `ParamsWriter` that copies them.

    Args:
        params: checked by `check_like`.
    """

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def write(
        self, wanted: Mapping[str, Any], reusable: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Copy one array after the other; each frees its memory first where that is allowed."""
        old = {} if reusable is None else _by_path(reusable)

        def place(path: Any, leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
            if (held := old.get(_joined(path))) is not None:
                held.delete()
            return jax.device_put(leaf, like.sharding, may_alias=False)

        return jax.tree_util.tree_map_with_path(place, dict(self._params), dict(wanted))

    def describe(self) -> dict[str, str]:
        """Nothing: there is one process."""
        return {}


def given_dtype(params: Mapping[str, Any]) -> jnp.dtype:
    """The dtype that a caller's tree asks to be computed in.

    Raises:
        ValueError: there is no final norm to take it from, or it is not floating-point.
    """
    try:
        dtype = activation_dtype(params)
    except (KeyError, AttributeError):
        raise ValueError(
            "params lack model.norm; a trainer's tree with other names needs mapping=..., a "
            "ParamsMapping"
        ) from None
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"params[model.norm] must be floating-point, got {dtype}")
    return dtype


def describe_params(
    params: Mapping[str, Any], config: ModelConfig, mesh: Mesh, rules: ShardingRules
) -> dict[str, Any]:
    """The required tree: ``jax.ShapeDtypeStruct`` with shardings, in the dtype of `params`."""
    return abstract_params(config, given_dtype(params), mesh, rules)


def place_params(params: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tree on the mesh; arrays that are placed as the steps need them are used as they are.

    Raises:
        ValueError: names the first leaf that is missing, unknown, or of another shape or dtype.
        TypeError: a leaf is no array.
    """
    check_like(params, wanted)

    def place(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
        if _is_placed(leaf, like):
            return leaf
        if like.sharding.is_fully_addressable:
            return jax.device_put(leaf, like.sharding)
        # device_put would compare the values over all processes.
        return upload(np.asarray(leaf), like.sharding)

    return jax.tree.map(place, params, wanted)


def check_like(params: Any, wanted: Any, *, placed: bool = False) -> None:
    """Check that `params` has the structure, shapes and dtypes of `wanted`.

    Args:
        placed: the shardings must be the same too.

    Raises:
        ValueError: names the first leaf, in the order of `wanted`, that differs or was deleted.
        TypeError: a leaf is no array.
    """
    given = _by_path(params)
    expected = _by_path(wanted)
    for path, like in expected.items():
        if path not in given:
            raise ValueError(_lacking([p for p in expected if p not in given], expected, given))
        leaf = given[path]
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise TypeError(f"params[{path}] must be an array, got {type(leaf).__name__}")
        if tuple(leaf.shape) != tuple(like.shape):
            raise ValueError(
                f"params[{path}] must have shape {tuple(like.shape)}, got {tuple(leaf.shape)}"
            )
        if leaf.dtype != like.dtype:
            raise ValueError(f"params[{path}] must be {like.dtype}, got {leaf.dtype}")
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise ValueError(
                f"params[{path}] was deleted, or donated to a program; give the newest arrays"
            )
        if placed and not _is_placed(leaf, like):
            where = getattr(leaf, "sharding", "host memory")
            raise ValueError(f"params[{path}] must be sharded as {like.sharding}, got {where}")
    for path in given:
        if path not in expected:
            raise ValueError(f"params have {path}, which this model does not")


def _lacking(missing: Sequence[str], expected: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What to say of leaves that are not there: the first, how many more, and the fix."""
    first, *others = missing
    like = expected[first]
    text = f"params lack {first}, which must be {like.dtype}{list(like.shape)}"
    if others:
        few = ", ".join([*others[:2], "..."] if len(others) > 2 else others)
        text += f", and {len(others)} more of {len(expected)} arrays: {few}"
    fix = "; give all of them, or mapping=ParamsMapping(...) from the names that they have"
    return text + (_stacked_instead(first, given) or _nearest(first, given) or fix)


def _stacked_instead(path: str, given: Mapping[str, Any]) -> str:
    stacked = re.sub(r"\.\d+\.", ".", path)
    if stacked == path or stacked not in given:
        return ""
    return (
        f"; they have {stacked}: if that holds all layers, give "
        "mapping=ParamsMapping.hugging_face(config).stacked()"
    )


def _nearest(path: str, given: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(path, list(given), n=1)
    return f"; the nearest that they have is {nearest[0]}" if nearest else ""


def _is_placed(leaf: Any, like: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(
        like.sharding, len(like.shape)
    )


def _by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {_joined(path): leaf for path, leaf in leaves}


def _joined(path: Any) -> str:
    return ".".join(str(getattr(key, "key", key)) for key in path)
