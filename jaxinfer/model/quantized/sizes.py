"""Whether a model's projections, and devices' shares of them, fit a quantized form; their bytes."""

import math
from typing import Any

from jaxinfer.model.projections import HEAD, projection_paths, projection_shapes, splits
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


def indivisible_blocks(config: Any, num_devices: int) -> list[str]:
    """Projections of which a device's share is no whole number of blocks, each with the reason."""
    form = config.quantization
    if form is None:
        return []
    taken = dict.fromkeys(
        path.rpartition(".")[2] for path in projection_paths(config) if form.takes(path)
    )
    shapes, problems = projection_shapes(config), []
    for name in taken:
        pairs = zip(shapes[name], splits(name, config, num_devices), strict=True)
        if why := form.obstacle(*(size // parts for size, parts in pairs)):
            problems.append(f"{name}: {why}")
    return problems


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
