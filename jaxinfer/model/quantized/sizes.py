"""Whether a model's projections, and devices' shares of them, fit a quantized form; their bytes."""

import math
from typing import Any

from jaxinfer.model.projections import (
    EXPERTS,
    HEAD,
    expert_shapes,
    is_of_experts,
    projection_paths,
    projection_shapes,
    splits,
)
from jaxinfer.model.quantized.quantization import Quantization

_BYTES = {"int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float32": 4, "int32": 4}


def check_sizes(config: Any) -> None:
    """Check that a `ModelConfig`'s quantization fits its projections.

    Raises:
        ValueError: it doesn't; names the first projection and the reason.
    """
    form = config.quantization
    if form is None:
        return
    if form.inputs is not None and not config.tie_word_embeddings and form.takes(HEAD):
        raise ValueError(
            f"{HEAD} is quantized with its inputs, and a head's inputs stay as they are; "
            f"put it into ignore"
        )
    if problems := indivisible_blocks(config, 1):
        raise ValueError(f"quantized weights don't fit the model: {problems[0]}")


def indivisible_blocks(config: Any, num_devices: int, num_groups: int = 1) -> list[str]:
    """Projections of which a device's share is no whole number of blocks, each with the reason.

    Args:
        config: a `ModelConfig`.
        num_devices: N.
        num_groups: G, groups of these devices that have whole experts.
    """
    form = config.quantization
    if form is None:
        return []
    taken = [path for path in projection_paths(config) if form.takes(path)]
    dense = dict.fromkeys(path.rpartition(".")[2] for path in taken if not is_of_experts(path))
    of_experts = dict.fromkeys(path.rpartition(".")[2] for path in taken if is_of_experts(path))
    shapes = {name: (projection_shapes(config)[name], num_devices) for name in dense}
    if of_experts:  # The devices of a group share the width of its experts.
        every, share = expert_shapes(config), num_devices // num_groups
        shapes |= {f"{EXPERTS}.{name}": (every[name][1:], share) for name in of_experts}
    problems = []
    for name, (shape, devices) in shapes.items():
        pairs = zip(shape, splits(name.rpartition(".")[2], config, devices), strict=True)
        if why := form.obstacle(*(size // parts for size, parts in pairs)):
            problems.append(f"{name}: {why}")
    return problems


def expert_bytes(config: Any, bytes_per_value: int) -> int:
    """Bytes of one expert in every layer that has some, codes with their scales where it has such.

    Args:
        config: of a model with experts.
        bytes_per_value: of a plain weight.
    """
    form, total = config.quantization, 0
    for path in filter(is_of_experts, projection_paths(config)):
        _, *shape = expert_shapes(config)[path.rpartition(".")[2]]
        if form is None or not form.takes(path):
            total += math.prod(shape) * bytes_per_value
        else:
            node = form.node(*shape).values()
            total += sum(math.prod(each.shape) * _BYTES[each.dtype] for each in node)
    return total


def node_bytes(form: Quantization, path: str, config: Any, num_devices: int = 1) -> int:
    """Bytes on each device of the arrays that stand for a quantized projection."""
    name = path.rpartition(".")[2]
    parts = splits(name, config, num_devices)
    node = form.node(*projection_shapes(config)[name])
    return sum(
        math.prod(array.shape)
        * _BYTES[array.dtype]
        // math.prod(parts[axis] for axis in array.axes if axis is not None)
        for array in node.values()
    )
