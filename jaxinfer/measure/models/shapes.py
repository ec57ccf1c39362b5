"""The shapes of published dense Qwen3 models, to measure speed without downloading weights."""

import dataclasses
from typing import TYPE_CHECKING

from jaxinfer.planning.named_shapes import NAMED_SHAPES

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

_SHAPES = {
    name.removeprefix("Qwen3-").lower(): shape
    for name, shape in NAMED_SHAPES.items()
    if shape.is_measured
}
SHAPE_NAMES = tuple(_SHAPES)


def shape_config(name: str) -> "ModelConfig":
    """The configuration of Qwen3-`name` (see `SHAPE_NAMES`), in bfloat16."""
    from jaxinfer.model.config import ModelConfig

    known = {field.name for field in dataclasses.fields(ModelConfig)}
    sizes = dataclasses.asdict(_SHAPES[name])
    return ModelConfig(
        **{field: value for field, value in sizes.items() if field in known},
        eos_token_ids=(151_645, 151_643),
    )
