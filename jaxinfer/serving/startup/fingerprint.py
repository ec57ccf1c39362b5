"""The fingerprint of an engine's KV blocks: equal only where blocks may be exchanged."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import jax

from jaxinfer import __version__
from jaxinfer.model.adapters.device_slots import ADAPTERS
from jaxinfer.serving.prefix_tiers.weights_digest import weights_digest
from jaxinfer.serving.programs.programs import Programs

FORMAT_VERSION = 1
"""Of what a block's bytes mean, and of keys; raise it when either changes."""


def fingerprint(programs: Programs, params: Mapping[str, Any], draft_head: object = None) -> str:
    """What names the weights and the layout of an engine's KV blocks.

    It covers all that decides a block's bytes, up to rounding: a version of jaxinfer, of JAX, or a
    kind of device computes the same keys with other roundings, and another fingerprint says so.

    Args:
        programs: the engine's.
        params: the parameter tree as it is placed, adapters left out of account.
        draft_head: the configuration of the head that drafts; None without one.

    Returns:
        64 hexadecimal digits.
    """
    text = repr(sorted(ingredients(programs, params, draft_head).items()))
    return hashlib.sha256(text.encode()).hexdigest()


def ingredients(
    programs: Programs, params: Mapping[str, Any], draft_head: object = None
) -> dict[str, str]:
    """What a fingerprint is made from, by name; see `fingerprint`."""
    context = programs.context
    weights = {name: node for name, node in params.items() if name != ADAPTERS}
    return {
        "format": str(FORMAT_VERSION),
        "jaxinfer": __version__,
        "jax": jax.__version__,
        # With the context that LongRoPE rotates for.
        "model": _text(context.config),
        "weights": weights_digest(weights),
        "draft head": _text(draft_head),
        "layers": _text(context.loop),
        "activations": context.dtype,
        "products": str(jax.config.jax_default_matmul_precision),
        "kernels": _text(context.kernels),
        "eager": str(programs.is_eager),
        "block size": str(context.block_size),
        "pages": str([_layout(leaf) for leaf in jax.tree.leaves(programs.cache.blocks(1))]),
        "devices": context.mesh.devices.flat[0].device_kind,
        "mesh": str(dict(context.mesh.shape)),
        "sharding": _text(context.rules),
        "sums": str(context.peer_buffers),
    }


def _layout(leaf: jax.ShapeDtypeStruct) -> tuple[object, ...]:
    """The shapes of a leaf and of a device's part of it, and its dtype."""
    assert leaf.sharding is not None
    return leaf.shape, leaf.sharding.shard_shape(leaf.shape), leaf.dtype.name


def _text(value: object) -> str:
    """A value in a form that is the same in every process; of a function, its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f"{each.name}={_text(getattr(value, each.name))}" for each in _fields(value)]
        return f"{type(value).__qualname__}({', '.join(fields)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_text(k)}: {_text(v)}" for k, v in value.items())) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return repr(value)


def _fields(value: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(value)
