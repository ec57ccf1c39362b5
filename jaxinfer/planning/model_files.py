"""Resolves a model name to its shape: from a directory, a published name or the hub's cache."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.checks import show
from jaxinfer.config import check_overrides
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import bundled_directory, refuse_gguf
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.families.table import FAMILIES, classifier_of_file
from jaxinfer.model.field_checks import whole_number
from jaxinfer.model.hf_config import read_config_file
from jaxinfer.model.hf_overrides import apply_overrides, backbone_config
from jaxinfer.planning.named_shapes import NAMED_SHAPES, find_shape
from jaxinfer.planning.shapes import ModelShape, shape_of

_MOST_CLASSES = 1 << 20


def read_shape(
    model: str | Path, overrides: Mapping[str, Any] | None = None
) -> tuple[str, ModelShape]:
    """A model's name and shape; nothing is downloaded.

    Args:
        model: the name of a bundled model, a directory that holds config.json, the file itself, a
            published name (`NAMED_SHAPES`), or a hub id whose config.json is in the local cache;
            looked for in this order.
        overrides: `EngineConfig.hf_overrides`.

    Raises:
        ModelLoadError: none of these, a GGUF file, or a config.json that can't be counted; one
            line.
        TypeError, ValueError: `overrides` are no fields that the engine reads.
    """
    check_overrides(overrides)
    path = bundled_directory(model) or Path(model).expanduser()
    refuse_gguf(path)
    if path.is_dir():
        path = path / "config.json"
    elif not path.is_file():
        known = find_shape(str(model))
        if known is not None:
            name, shape = known
            return name, shape if overrides is None else _overridden(shape.to_hf(), name, overrides)
        path = cached_file(
            str(model),
            "no such directory, no published shape and not in the hub's local cache; give a "
            "directory with config.json, a hub id that was downloaded, or one of "
            f"{', '.join(NAMED_SHAPES)}",
        )
    else:  # a link that a caller names may lead anywhere
        path = path.resolve()
    return str(model), _overridden(read_config_file(path), str(path), overrides)


def _overridden(
    mapping: Mapping[str, Any], source: str, overrides: Mapping[str, Any] | None
) -> ModelShape:
    if overrides is None:
        return shape_from_hf(mapping, source)
    return shape_from_hf(apply_overrides(mapping, overrides), f"{source} with hf_overrides")


def shape_from_hf(mapping: Mapping[str, Any], source: str) -> ModelShape:
    """The shape that a config.json describes.

    Args:
        mapping: its JSON object.
        source: name of the file, for messages.

    Raises:
        ModelLoadError: ``<source>: <cause>``.
    """
    model_type = mapping.get("model_type")
    if model_type in FAMILIES:
        shape = shape_of(ModelConfig.from_hf(backbone_config(mapping), source))
        if classifier_of_file(mapping) is None:
            return shape
        return dataclasses.replace(shape, num_classes=_num_classes(mapping, source))
    known = ", ".join(sorted(FAMILIES))
    raise ModelLoadError(f"{source}: model_type is {show(model_type)}; plans are for {known}")


def _num_classes(mapping: Mapping[str, Any], source: str) -> int:
    """The classes of a classifier: as many as it names; transformers leaves out that they are 2."""
    names, count = mapping.get("id2label"), mapping.get("num_labels")
    try:
        if count is None:
            if not isinstance(names, Mapping | None):
                raise ValueError(f"id2label must name the classes, got {show(names)}")
            count = 2 if names is None else len(names)
        return whole_number("num_labels", count, 1, _MOST_CLASSES)
    except ValueError as error:
        raise ModelLoadError(f"{source}: {error}") from None


def cached_file(name: str, cause: str, revision: str | None = None) -> Path:
    """config.json of a hub id in Hugging Face's cache.

    Args:
        name: the hub id.
        cause: of the error, and the remedy.
        revision: branch, tag or commit; None is the main branch.

    Raises:
        ModelLoadError: it is not there: ``<name>: <cause>``.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        found = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
    except errors.HFValidationError:
        found = None
    if not isinstance(found, str):
        raise ModelLoadError(f"{name}: {cause}")
    return Path(found)
