"""The table of model families, by the "model_type" of config.json. Nothing here imports JAX."""

import importlib
from collections.abc import Mapping
from typing import Any

from jaxinfer.checks import show
from jaxinfer.model.families.family import Family

FAMILIES: dict[str, str | Family] = {
    "llama": "jaxinfer.model.families.llama",
    "ministral3": "jaxinfer.model.families.ministral3",
    "mistral": "jaxinfer.model.families.mistral",
    "mistral3": "jaxinfer.model.families.mistral3",
    "olmo2": "jaxinfer.model.families.olmo2",
    "phi3": "jaxinfer.model.families.phi3",
    "qwen2": "jaxinfer.model.families.qwen2",
    "qwen3": "jaxinfer.model.families.qwen3",
    "qwen3_moe": "jaxinfer.model.families.qwen3_moe",
    "qwen3_vl": "jaxinfer.model.families.qwen3_vl",
    "smollm3": "jaxinfer.model.families.smollm3",
}
"""By `model_type` of config.json: a module whose `FAMILY` it is, or the value."""


def family_of(model_type: str) -> Family:
    """The family with this name; ValueError lists the names."""
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
    if architectures is not None and not _lists(architectures, family.hf_class):
        problem = f"architectures is {show(architectures)} (supported: {family.hf_class})"
        if classifier_of_file(mapping) is not None:
            problem += (
                "; a classifier can't generate, and is run by "
                'LLM(model, runner="pooling") or jaxinfer serve --runner pooling'
            )
        raise ValueError(problem)
    return name, family


def classifier_of_file(mapping: Mapping[str, Any]) -> Family | None:
    """The family of a decoder with a classifying head; None if config.json names another class."""
    name, architectures = mapping.get("model_type"), mapping.get("architectures")
    if not isinstance(name, str) or name not in FAMILIES:
        return None
    family = family_of(name)
    has_head = _lists(architectures, family.classifier_class)
    return family if has_head and not _lists(architectures, family.hf_class) else None


def _lists(architectures: Any, name: str | None) -> bool:
    return name is not None and isinstance(architectures, list) and name in architectures
