"""Makes LoRA matrices with PEFT's names and shapes of a trainer's own, by a mapping."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.checks import show
from jaxinfer.model.adapters.groups import ADAPTED
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import projection_shapes
from jaxinfer.rollouts.conversion import made
from jaxinfer.rollouts.mapping import ParamsMapping
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.sources import LAYER, Assignment, check_source, transformed_shape
from jaxinfer.rollouts.targets import Target
from jaxinfer.rollouts.trees import Leaves

_EXAMPLE = f"model.layers.{LAYER}.self_attn.q_proj.lora_A"


def mapped_adapter(leaves: Leaves, mapping: ParamsMapping, config: ModelConfig) -> Leaves:
    """An adapter's matrices by PEFT's names: ``lora_A`` ``[r, I]`` and ``lora_B`` ``[O, r]``.

    One program makes all, where the trainer's arrays lie; their dtypes stay.

    Args:
        leaves: the trainer's, from `leaves_by_path`.
        mapping: to PEFT's names of the projections that the adapter changes. The rank is found.
        config: the model's shape.

    Raises:
        ValueError: the mapping sets what is no matrix of LoRA, or one twice; a source is not in the
            tree, does not give the shape, was deleted, or has another number of layers. Names the
            first.
        TypeError: a source is no array.
    """
    assignments = mapping.expanded(tuple(range(config.num_hidden_layers)))
    targets = tuple(_checked_target(each, leaves, config) for each in assignments)
    sources = together({each.path: leaves[each.path] for each in assignments})
    return made(assignments, targets, sources)


def together(leaves: Leaves) -> Leaves:
    """Leaves that one program takes: on the host, unless all lie on one device or one mesh.

    Raises:
        ValueError: one was deleted; names it.
    """
    for name, leaf in leaves.items():
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise ValueError(f"{name} was deleted, or donated to a program; give the newest arrays")
    if _lie_together(list(leaves.values())):
        return leaves
    return {name: np.asarray(leaf) for name, leaf in jax.device_get(leaves).items()}


def _lie_together(leaves: Sequence[Any]) -> bool:
    """Whether all are JAX's arrays on one device or one mesh, so that one program takes them."""
    if not leaves or not all(isinstance(leaf, jax.Array) for leaf in leaves):
        return False
    places = [(leaf.sharding.device_set, getattr(leaf.sharding, "mesh", None)) for leaf in leaves]
    devices, mesh = places[0]
    alone = len(devices) == 1
    return all(each == devices and (alone or of == mesh) for each, of in places)


def _checked_target(each: Assignment, leaves: Leaves, config: ModelConfig) -> Target:
    """What a source is to become, in the source's own dtype."""
    *_, part, name, which = ("", "", *each.target.split("."))
    if (part, name) not in ADAPTED or which not in ("lora_A", "lora_B"):
        raise ValueError(
            f"the mapping sets {show(each.target)}, which is no matrix of LoRA; write "
            f"{_EXAMPLE}, for instance"
        )
    leaf = leaves.get(each.path)
    if isinstance(leaf, QuantizedLeaf):
        raise ValueError(f"params[{each.path}] is quantized; give an adapter's matrices as floats")
    outputs, inputs = projection_shapes(config)[name]
    known = inputs if which == "lora_A" else outputs
    given = transformed_shape(each, tuple(getattr(leaf, "shape", ())), ())
    rank = math.prod(given or (0,)) // known
    shape = (rank, known) if which == "lora_A" else (known, rank)
    check_source(each, leaves, Target(each.target, shape, ()))
    array = jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(leaves[each.path].dtype))
    return Target(each.target, shape, ((None, array),))
