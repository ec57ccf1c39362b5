"""Converts paths in the parameter tree to tensor names in Hugging Face's files."""

from collections.abc import Iterator, Mapping
from typing import Any

_WEIGHT, _BIAS = ".weight", ".bias"
_TREE_BIAS = "_bias"


def tensor_name(path: str) -> str:
    """``model.norm`` -> ``model.norm.weight``; ``….q_proj_bias`` -> ``….q_proj.bias``."""
    if path.endswith(_TREE_BIAS):
        return path.removesuffix(_TREE_BIAS) + _BIAS
    return path + _WEIGHT


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings as ``("model.layers.0.mlp.up_proj", leaf)``, in tree order."""
    for key, node in tree.items():
        if isinstance(node, Mapping):
            yield from flatten(node, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", node


def unflatten(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts from dotted paths: the inverse of ``flatten``."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split(".")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = leaf
    return tree
