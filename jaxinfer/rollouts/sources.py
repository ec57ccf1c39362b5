"""The source of one engine parameter in a trainer's tree: its path, transformation and checks."""

import difflib
import itertools
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxinfer.checks import MAX_INT32, check_integer, check_real, show
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.taking import check_taken
from jaxinfer.rollouts.targets import Target
from jaxinfer.rollouts.trees import Leaves, canonical

LAYER = "{layer}"
"""Placeholder for the number of a layer in paths."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ParamSource:
    """The source of one parameter: its path and its transformation.

    The steps are taken in this order: `split`, `transpose`, `part`, `reshape`, `scale`.

    Attributes:
        path: in the trainer's tree, names joined by dots; ``{layer}`` stands for the layer. If only
            the engine's path has ``{layer}``, the trainer's array holds all layers, stacked.
        transpose: the order of the dimensions, as for `jnp.transpose`; of one layer if stacked.
        part: the first index and the one behind the last, along `part_axis`: several of the
            engine's parameters may be parts of one array, such as fused projections.
        reshape: whether neighbouring dimensions are then merged into the engine's.
        scale: a factor, multiplied in float32.
        split: the shape of one layer's array once its dimensions are split, as interleaved ones
            must be before they can be transposed or cut.
        part_axis: the dimension that `part` is of, in the order that `transpose` gives.

    Raises:
        TypeError, ValueError: an attribute is of another kind; names it.
    """

    path: str
    transpose: tuple[int, ...] | None = None
    part: tuple[int, int] | None = None
    reshape: bool = False
    scale: float | None = None
    split: tuple[int, ...] | None = None
    part_axis: int = 0

    def __post_init__(self) -> None:
        """Check the attributes; sequences are stored as tuples, so that a source can be hashed."""
        if not isinstance(self.path, str):
            raise TypeError(f"the path of a ParamSource must be a string, got {show(self.path)}")
        for name in ("transpose", "part", "split"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _integers(name, getattr(self, name)))
        if self.part is not None and len(self.part) != 2:
            raise ValueError(f"part must be the first index and the last plus 1, got {self.part}")
        check_integer("part_axis", self.part_axis, -MAX_INT32, MAX_INT32)
        if self.scale is not None:
            scale = check_real("scale", self.scale, -sys.float_info.max, sys.float_info.max)
            object.__setattr__(self, "scale", scale)


def _integers(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a tuple of integers, got {show(given)}")
    return tuple(check_integer(f"{name} entry", each, -MAX_INT32, MAX_INT32) for each in given)


Table = dict[str, ParamSource]
"""Sources by whole paths of the engine, or by their last names for all layers."""


class Assignment(NamedTuple):
    """One parameter of the engine with its source.

    Attributes:
        target: the engine's path.
        path: the source's, for this layer.
        layer: its index among stacked layers.
        axis: of stacked layers; None if they are not stacked.
    """

    target: str
    source: ParamSource
    path: str
    layer: int
    axis: int | None
    num_layers: int


def check_source(each: Assignment, leaves: Leaves, like: Target) -> None:
    """Check that a source exists, with the model's number of layers and the right shape.

    Raises:
        ValueError: names paths and shapes, or both numbers of layers; or the source was deleted.
        TypeError: the source is no array of floating-point numbers.
    """
    _check_num_layers(each, leaves)
    if each.path not in leaves:
        near = _stacked_instead(each, leaves) or nearest(each.path, leaves)
        raise ValueError(f"the mapping takes {each.target} from {each.path}, not in params{near}")
    leaf = leaves[each.path]
    shape = getattr(leaf, "shape", None)
    if shape is None:
        raise TypeError(f"params[{each.path}] must be an array, got {type(leaf).__name__}")
    given = transformed_shape(each, tuple(shape), tuple(like.shape))
    if given != tuple(like.shape):
        what = "can't become" if given is None else f"becomes {given}, not"
        raise ValueError(
            f"params[{each.path}], {tuple(shape)}, {what} {each.target}, {tuple(like.shape)}"
        )
    if isinstance(leaf, QuantizedLeaf):
        _check_quantized(each, leaf, like)
    elif not jnp.issubdtype(leaf.dtype, jnp.floating):
        raise TypeError(f"params[{each.path}] must hold floating-point numbers, got {leaf.dtype}")
    elif isinstance(leaf, jax.Array) and leaf.is_deleted():
        raise ValueError(
            f"{each.path} was deleted, or donated to a program; give the newest arrays"
        )


def _check_quantized(each: Assignment, leaf: QuantizedLeaf, like: Target) -> None:
    if (each.source.part, each.source.scale, each.source.split) != (None, None, None):
        raise ValueError(
            f"params[{each.path}] is quantized; the mapping can't split, cut or scale it"
        )
    as_it_is = each._replace(source=replace(each.source, reshape=False))
    codes, scale = (
        transformed_shape(as_it_is, tuple(array.shape), ()) for array in (leaf.qvalue, leaf.scale)
    )
    check_taken(each.path, leaf, (codes or (), scale or ()), like)


def without_layer(path: str) -> str:
    """The path of stacked layers: ``layers`` for ``layers.{layer}`` and for ``layers_{layer}``."""
    return re.sub(rf"[._]?{re.escape(LAYER)}", "", path)


def nearest(path: str, known: Iterable[str]) -> str:
    """The end of an error message: the known path that is most like this one, if any is."""
    found = difflib.get_close_matches(path, list(known), n=1, cutoff=0.6)
    return f"; the nearest is {found[0]}" if found else ""


def _check_num_layers(each: Assignment, leaves: Leaves) -> None:
    if each.axis is None:
        given = _num_separate(each, leaves)
        where = f"params[{each.source.path}] has {given} layers"
    else:
        shape = tuple(getattr(leaves.get(each.path), "shape", ()))
        given = shape[each.axis] if _has_axis(shape, each.axis) else None
        where = f"params[{each.path}], {shape}, has {given} layers along axis {each.axis}"
    if given is not None and given != each.num_layers:
        raise ValueError(f"{where}, but the model has {each.num_layers}")


def _num_separate(each: Assignment, leaves: Leaves) -> int | None:
    """The number of layers with a source; None if it can't be told, as with a gap in between."""

    def has(layer: int) -> bool:
        return canonical(each.source.path.replace(LAYER, str(layer))) in leaves

    if LAYER not in each.source.path or each.layer or not has(0):
        return None
    given = next(layer for layer in itertools.count() if not has(layer))
    return None if any(map(has, range(given, each.num_layers))) else given


def _stacked_instead(each: Assignment, leaves: Leaves) -> str:
    path = canonical(without_layer(each.source.path))
    if each.axis is not None or path not in leaves:
        return ""
    return f"; {path} is, so use mapping.stacked(axis) if that holds all layers"


def transformed_shape(each: Assignment, shape: Shape, wanted: Shape) -> Shape | None:
    """The shape of a source after its transformation; None if its dimensions don't fit."""
    if each.axis is not None:
        if not _has_axis(shape, each.axis):
            return None
        shape = tuple(n for i, n in enumerate(shape) if i != each.axis % len(shape))
    if (split := each.source.split) is not None:
        if not _merges(split, shape):
            return None
        shape = split
    if (order := each.source.transpose) is not None:
        if sorted(order) != list(range(len(shape))):
            return None
        shape = tuple(shape[i] for i in order)
    if (part := each.source.part) is not None:
        axis = each.source.part_axis
        if not 0 <= axis < len(shape) or not 0 <= part[0] < part[1] <= shape[axis]:
            return None
        shape = (*shape[:axis], part[1] - part[0], *shape[axis + 1 :])
    return wanted if each.source.reshape and _merges(shape, wanted) else shape


def _has_axis(shape: Shape, axis: int) -> bool:
    return -len(shape) <= axis < len(shape)


def _merges(shape: Shape, wanted: Shape) -> bool:
    """True if merging neighbours makes one shape of the other."""
    left = list(shape)
    for size in wanted:
        product = left.pop(0) if left else 0
        while left and product < size:
            product *= left.pop(0)
        if product != size:
            return False
    return not left
