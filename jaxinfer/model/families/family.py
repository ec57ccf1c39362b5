"""What a model family is, and the table of all of them. Nothing here imports JAX."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxinfer.checks import show
from jaxinfer.model.checkpoint.parameter_names import tensor_name
from jaxinfer.model.layer_kind import LayerKind


@dataclass(frozen=True)
class Family:
    """A model family: what its files say, what its layers are, and its parts on a device.

    Attributes:
        hf_class: transformers' class, which `architectures` of config.json names.
        read_config: ``(object of config.json) -> arguments of ModelConfig``, without `model_type`.
            It raises ValueError, which names the field, for what it can't read or run.
        layer_kinds: ``(config) -> kind of each layer``, in order.
        architecture: what computes it; called when it is first needed, and may import JAX.
        tensor_name: from a path in the parameter tree to the tensor's name in the family's files.
    """

    hf_class: str
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]]
    layer_kinds: Callable[[Any], tuple[LayerKind, ...]]
    architecture: Callable[[], Any]
    tensor_name: Callable[[str], str] = tensor_name


FAMILIES: dict[str, str | Family] = {
    "qwen3": "jaxinfer.model.families.qwen3",
}
"""By `model_type` of config.json: a module whose `FAMILY` it is, or the value."""


def family_of(model_type: str) -> Family:
    """The family with this name.

    Raises:
        ValueError: there is none; the message lists the names.
    """
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"model_type is {show(model_type)}; families: {known}")
    found = FAMILIES[model_type]
    return found if isinstance(found, Family) else importlib.import_module(found).FAMILY


def family_of_file(mapping: Mapping[str, Any]) -> tuple[str, Family]:
    """The name and the family that an object of config.json asks for.

    Raises:
        ValueError: it names none of them, or another class than the family's; lists the classes.
    """
    name = mapping.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        named = "has no model_type" if name is None else f"model_type is {show(name)}"
        if mapping.get("vision_config") is not None:
            named += ", a multimodal model"
        classes = ", ".join(family_of(each).hf_class for each in sorted(FAMILIES))
        raise ValueError(f"{named} (supported architectures: {classes})")
    family, architectures = family_of(name), mapping.get("architectures")
    is_listed = isinstance(architectures, list) and family.hf_class in architectures
    if architectures is not None and not is_listed:
        raise ValueError(f"architectures is {show(architectures)} (supported: {family.hf_class})")
    return name, family
