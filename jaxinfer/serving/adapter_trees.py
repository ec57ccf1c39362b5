"""Makes adapters of a trainer's trees of arrays, and of one like an earlier one quickly."""

import numbers
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import jax

from jaxinfer.checks import show
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.model.adapters.matrices import Matrices, Target
from jaxinfer.model.adapters.names import is_transposed, paired
from jaxinfer.model.adapters.shape import AdapterShape
from jaxinfer.model.adapters.stacking import Stack
from jaxinfer.rollouts.adapter_leaves import mapped_adapter, together
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.rollouts.trees import leaves_by_path
from jaxinfer.serving.compile.jax_settings import JaxSettings

_MOST_KNOWN = 8
_shape_of = attrgetter("aval.shape")


class _Known(NamedTuple):
    """A kind of tree that was an adapter's once.

    Attributes:
        array: the class of all its leaves.
        shapes: of its leaves.
        in_pairs: takes from the leaves A and B of each projection, one behind the other.
        stack: what made the adapter of them.
    """

    array: type
    shapes: list[tuple[int, ...]]
    in_pairs: Callable[[Sequence[Any]], tuple[Any, ...]]
    stack: Stack

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether these leaves of such a tree are as its own were."""
        return (
            set(map(type, leaves)) == {self.array} and list(map(_shape_of, leaves)) == self.shapes
        )


class AdapterTrees:
    """Makes adapters of trees; one call at a time.

    A tree has hundreds of leaves, and to read the names and check the shapes of all takes the host
    longer than the device needs. A trainer's trees are of the same structure and shapes step after
    step: so what was found of one is remembered, and the next one's arrays go straight into the
    program that stacks them.

    Args:
        shape: what they must fit.
    """

    def __init__(self, shape: AdapterShape) -> None:
        self._shape = shape
        self._known: OrderedDict[Any, _Known] = OrderedDict()

    def adapter(
        self, name: str, tree: Any, scale: float, mapping: ParamsMapping | None = None
    ) -> Adapter:
        """The adapter of a tree.

        Args:
            scale: what the product of its matrices is multiplied by.
            mapping: from the tree's names to PEFT's; None where it has names that are known.

        Raises:
            TypeError: it is no tree, or the scale no number.
            ValueError: a leaf is none of LoRA, was deleted, does not fit, or holds NaN or infinity;
                names it. Or the mapping does not fit the tree.
        """
        _check_scale(scale)
        with JaxSettings.here().held():  # a trainer's may forbid transfers
            return self._adapter(name, tree, scale, mapping)

    def _adapter(
        self, name: str, tree: Any, scale: float, mapping: ParamsMapping | None
    ) -> Adapter:
        if mapping is not None:
            tree = mapped_adapter(leaves_by_path(tree), mapping, self._shape.config)
        leaves, structure = jax.tree.flatten(tree)
        try:
            known = self._known.get(structure)
        except (TypeError, ValueError):  # a trainer's nodes need not be comparable
            return self._shape.adapter(name, None, of_tree(tree, scale))
        adapter = None if known is None else self._again(name, known, leaves, float(scale))
        if adapter is None:
            found = of_tree(tree, scale)
            adapter = self._shape.adapter(name, None, found)
            self._remember(structure, leaves, found)
        return adapter

    def _again(
        self, name: str, known: _Known, leaves: Sequence[Any], scale: float
    ) -> Adapter | None:
        """The adapter of such a tree; None where each leaf must be looked at, to name what differs.

        As of arrays that were deleted, that lie on other devices, or that are not finite.
        """
        if not known.fits(leaves):
            return None
        try:
            return self._shape.again(name, known.stack, known.in_pairs(leaves), scale)
        except (RuntimeError, ValueError):
            return None

    def _remember(
        self, structure: Any, leaves: Sequence[Any], found: dict[Target, Matrices]
    ) -> None:
        """Remember a tree's kind, if its leaves are the matrices themselves, in JAX's arrays."""
        places = {id(leaf): place for place, leaf in enumerate(leaves)}
        arrays = [array for each in found.values() for array in (each.a, each.b)]
        order = [place for array in arrays if (place := places.get(id(array))) is not None]
        array, *others = set(map(type, leaves))
        if others or not len(order) == len(arrays) == len(leaves) == len(places):
            return
        if not isinstance(leaves[0], jax.Array):
            return
        shapes, stack = list(map(_shape_of, leaves)), self._shape.program_of(found)
        self._known[structure] = _Known(array, shapes, itemgetter(*order), stack)
        self._known.move_to_end(structure)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)


def _check_scale(scale: Any) -> None:
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):
        raise TypeError(f"scale must be a number, got {show(scale)}")


def of_tree(tree: Any, scale: float) -> dict[Target, Matrices]:
    """The matrices of a trainer's tree, PEFT's names or those of tunix and qwix.

    Raises:
        TypeError: it is no tree.
        ValueError: a leaf is none of LoRA, or was deleted; names it.
    """
    _check_scale(scale)
    leaves = leaves_by_path(tree)
    pairs = paired(leaves)
    leaves = together({name: leaves[name] for pair in pairs.values() for name in pair})
    return {
        target: Matrices(leaves[a], leaves[b], float(scale), (is_transposed(a), is_transposed(b)))
        for target, (a, b) in pairs.items()
    }
