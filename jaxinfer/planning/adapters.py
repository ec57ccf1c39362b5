"""What the slots of LoRA adapters take of every device."""

import math

from jaxinfer.config import EngineConfig
from jaxinfer.model.adapters.groups import COUNTS, GROUPS, padded_ranks
from jaxinfer.model.projections import projection_shapes, splits
from jaxinfer.planning.shapes import BYTES_OF, ModelShape

_COUNT_BYTES = 4


def adapter_bytes(shape: ModelShape, dtype: str, config: EngineConfig) -> int:
    """Bytes of the slots on each device: of `device_slots.describe_slots`; 0 without adapters.

    Args:
        shape: the model.
        dtype: of activations.
        config: the numbers of slots and of ranks, and the tensor-parallel degree.

    Raises:
        ValueError: the model has experts, which an engine doesn't adapt.
    """
    if not config.enable_lora:
        return 0
    if shape.num_expert_layers:
        raise ValueError(
            "enable_lora adapts dense layers, and this model's are experts; leave it out, or merge "
            "the adapter into the weights"
        )
    shapes, devices = projection_shapes(shape), config.tensor_parallel_size
    R, values = padded_ranks(config.max_loras, config.max_lora_rank), 0
    for _, names in GROUPS.values():
        _, inputs = shapes[names[0]]
        values += len(names) * R * inputs // splits(names[0], shape, devices)[1]
        for name in names:
            outputs = shapes[name][0] // splits(name, shape, devices)[0]
            values += outputs * R
    of_counts = math.prod(COUNTS) * _COUNT_BYTES
    return values * shape.num_hidden_layers * BYTES_OF[dtype] + of_counts
