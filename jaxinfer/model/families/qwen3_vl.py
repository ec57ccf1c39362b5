"""Qwen3-VL's text half, which is a Qwen3 under other names: images and videos are not served.

Texts have the same position on all three of its axes, so that its rotation is the usual one.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.model.families import qwen3
from jaxinfer.model.families.family import Family
from jaxinfer.model.hf_config import rope_object, text_config

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

_DEFAULT_ROPE_THETA = 500_000.0  # of transformers, for a file that names none
_OF_IMAGES = ("mrope_section", "mrope_interleaved")


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`, of the object under ``text_config``.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    text = text_config(mapping)
    rope = {name: value for name, value in rope_object(text).items() if name not in _OF_IMAGES}
    if text.get("rope_theta") is None:
        rope.setdefault("rope_theta", _DEFAULT_ROPE_THETA)
    plain = {name: value for name, value in text.items() if name != "rope_scaling"}
    return qwen3.read_config({**plain, "rope_parameters": rope})


def write_config(config: "ModelConfig", fields: dict[str, Any]) -> dict[str, Any]:
    """The object of a Qwen3, since the other half is not here to be saved."""
    return {**fields, "model_type": "qwen3", "architectures": [qwen3.FAMILY.hf_class]}


def tensor_name(path: str) -> str:
    """Names of the half that is read; the head is outside of it."""
    return qwen3.FAMILY.tensor_name(path).replace("model.", "model.language_model.", 1)


FAMILY = Family(
    "Qwen3VLForConditionalGeneration",
    read_config,
    qwen3.layer_kinds,
    write_config=write_config,
    tensor_name=tensor_name,
    ignored=("model.visual.",),
)
