"""The stages of a pipeline as shapes: the layers of each, and whether it embeds or has the head."""

import dataclasses

from jaxinfer.model.families.table import family_of
from jaxinfer.model.stages.stage_layers import stage_layers
from jaxinfer.planning.operations import weight_bytes_per_device
from jaxinfer.planning.shapes import BYTES_OF, ModelShape


@dataclasses.dataclass(frozen=True)
class StageShape:
    """What one stage has of a model.

    Attributes:
        shape: a model of its layers alone.
        layers: of the model.
        embeds: whether it is the first stage.
        has_head: whether it is the last one.
    """

    shape: ModelShape
    layers: range
    embeds: bool = True
    has_head: bool = True

    def weight_bytes(self, dtype: str, num_devices: int, num_redundant: int = 0) -> int:
        """Bytes of the parameters on each device; arguments as of `weight_bytes_per_device`."""
        shape = self.shape
        whole = weight_bytes_per_device(shape, dtype, num_devices, num_redundant)
        table = shape.vocab_size * shape.hidden_size // num_devices * BYTES_OF[dtype]
        # A tied table is counted once, and lies on the first stage and on the last.
        is_tied = shape.tie_word_embeddings
        tables = (self.embeds or (is_tied and self.has_head)) + (self.has_head and not is_tied)
        norm = 0 if self.has_head else shape.hidden_size * BYTES_OF[dtype]
        return whole - ((2 - is_tied) - tables) * table - norm


def stage_shapes(shape: ModelShape, num_stages: int) -> tuple[StageShape, ...]:
    """Each stage of a model; ValueError if there are fewer layers than stages."""
    if num_stages == 1:
        return (StageShape(shape, range(shape.num_hidden_layers)),)
    stages = stage_layers(shape, num_stages)
    with_layers = family_of(shape.model_type).with_layers
    return tuple(
        StageShape(with_layers(shape, [*layers]), layers, i == 0, i == num_stages - 1)
        for i, layers in enumerate(stages)
    )
