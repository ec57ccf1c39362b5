"""The text half of Mistral Small 3.1 and of the published Ministral 3: images are not served."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxinfer.checks import show
from jaxinfer.model.families import ministral3, mistral
from jaxinfer.model.families.family import Family
from jaxinfer.model.hf_config import text_config
from jaxinfer.model.rope_scaling import RopeScaling

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

_TEXTS = {"mistral": mistral, "ministral3": ministral3}


def read_config(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `ModelConfig`, of the object under ``text_config``.

    Raises:
        ValueError: names the field that can't be read or run.
    """
    text = text_config(mapping)
    kind = text.get("model_type", "mistral")
    if kind not in _TEXTS:
        raise ValueError(f"text_config.model_type is {show(kind)} (supported: {', '.join(_TEXTS)})")
    return _TEXTS[kind].read_config(text)


def write_config(config: "ModelConfig", fields: dict[str, Any]) -> dict[str, Any]:
    """The object of the model of texts alone, since the other half is not here to be saved."""
    scaling = config.rope_scaling
    grows = isinstance(scaling, RopeScaling) and scaling.query_beta is not None
    kind = "ministral3" if grows else "mistral"
    return {**fields, "model_type": kind, "architectures": [_TEXTS[kind].FAMILY.hf_class]}


def tensor_name(path: str) -> str:
    """Names of the half that is read."""
    return f"language_model.{mistral.FAMILY.tensor_name(path)}"


FAMILY = Family(
    "Mistral3ForConditionalGeneration",
    read_config,
    mistral.layer_kinds,
    ministral3.architecture,
    write_config=write_config,
    tensor_name=tensor_name,
    ignored=("vision_tower.", "multi_modal_projector."),
)
