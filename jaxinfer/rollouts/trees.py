"""Flattens a trainer's parameters, a tree of any kind, to a dictionary from path to array."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxinfer.model.quantized.quantization import NODE, SCALE
from jaxinfer.rollouts.quantized_leaf import gathered

Leaves = dict[str, Any]
"""Arrays by canonical path, in the order of the tree."""


def leaves_by_path(tree: Any) -> Leaves:
    """The arrays of a tree with nodes of any kind.

    Nodes may be mappings of any kind (dictionaries, `nnx.State`, `FrozenDict`), with string or
    integer keys, sequences, registered pytrees (Equinox and NNX modules) and plain objects whose
    attributes are arrays. A leaf may be wrapped in an object with `.value` or `[...]`. Linen's
    collection ``params`` is unwrapped; functions, as modules hold for activations, are left out.

    Args:
        tree: a trainer's parameters; no array is copied.

    Returns:
        Leaves by `canonical` path, such as ``model.layers.0.self_attn.q_proj``; the arrays of
        a quantized weight keep their names, and a `QArray` of qwix is one `QuantizedLeaf`.

    Raises:
        TypeError: it is no tree at all.
        ValueError: two leaves have the same canonical path.
    """
    if tree is None or isinstance(tree, (str, bytes, int, float)) or _is_array(tree):
        hint = "; a directory is given as model" if isinstance(tree, str) else ""
        raise TypeError(f"params must be a Mapping, got {type(tree).__name__}{hint}")
    found: Leaves = {}
    items = list(_walk(tree, (), ()))
    while items and all(len(parts) > 1 and parts[0] == "params" for parts, _ in items):
        items = [(parts[1:], leaf) for parts, leaf in items]
    quantized = {parts[:-1] for parts, _ in items if parts[-1:] == (SCALE,)}
    for parts, leaf in items:
        is_part = parts[:-1] in quantized and parts[-1] in NODE
        path = ".".join(parts) if is_part else canonical(".".join(parts))
        if path in found:
            raise ValueError(f"params have {path} twice, as {'.'.join(parts)} and in other words")
        found[path] = leaf
    return gathered(found)


def nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries with string keys, of leaves by path.

    Raises:
        ValueError: a path is both a leaf and the beginning of another.
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise ValueError(f"params have {path}, but also an array at {'.'.join(parents)}")
        if name in node:
            raise ValueError(f"params have {path} as an array and as the beginning of other paths")
        node[name] = leaf
    return tree


def canonical(path: str) -> str:
    """The engine's spelling of a path: ``a.weight`` is ``a``, and ``a.bias`` is ``a_bias``."""
    if path.endswith(".weight"):
        return path.removesuffix(".weight")
    return path.removesuffix(".bias") + "_bias" if path.endswith(".bias") else path


def _walk(
    node: Any, parts: tuple[str, ...], above: tuple[int, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and leaves; `above` holds the ids of enclosing objects, to stop at cycles."""
    for keys, child in jax.tree_util.tree_leaves_with_path(node):
        names = [str(_name(key)) for key in keys]
        if names and isinstance(keys[-1], jax.tree_util.GetAttrKey) and names[-1] == "value":
            names.pop()  # a Flax variable, which is a node of its own
        yield from _leaf(child, (*parts, *names), above)


def _leaf(
    leaf: Any, parts: tuple[str, ...], above: tuple[int, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    if _is_array(leaf):
        yield parts, leaf
    elif callable(leaf) and not getattr(leaf, "__dict__", None):
        return
    elif isinstance(leaf, Mapping):
        for key, child in leaf.items():
            yield from _walk(child, (*parts, str(key)), above)
    elif (inner := _unwrapped(leaf)) is not None:
        yield parts, inner
    elif hasattr(leaf, "__dict__") and not isinstance(leaf, type):
        yield from _attributes(leaf, parts, above)
    else:
        yield parts, leaf  # the caller, who needs an array here, names it


def _attributes(
    node: Any, parts: tuple[str, ...], above: tuple[int, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Arrays of an object that JAX does not know; its other plain attributes are settings."""
    if id(node) in above:
        return
    for name, child in vars(node).items():
        if not name.startswith("_"):
            for path, leaf in _walk(child, (*parts, name), (*above, id(node))):
                if _is_array(leaf):
                    yield path, leaf


def _unwrapped(leaf: Any) -> Any:
    """The array in a variable, or None."""
    if _is_array(value := getattr(leaf, "value", None)):
        return value
    if hasattr(leaf, "__getitem__") and not isinstance(leaf, (str, bytes)):
        try:
            value = leaf[...]
        except (TypeError, KeyError, IndexError, ValueError):
            return None
        return value if _is_array(value) else None
    return None


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct)):
        return True
    # A variable has a shape, too; but the array inside is wanted.
    has_both = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return has_both and not hasattr(leaf, "value") and not isinstance(leaf, type)


def _name(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key
