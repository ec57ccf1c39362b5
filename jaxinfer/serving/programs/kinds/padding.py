"""Batches of padding, on which programs run before there are requests."""

from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.upload import upload


def decode_padding(shape: DecodeShape) -> np.ndarray:
    """A packed batch of one token in the first row."""
    packed = shape.blank()
    fields = shape.split(packed)
    fields.context_lens[0] = fields.num_tokens[0] = 1
    return packed


def zeros(structs: Any) -> Any:
    """NumPy arrays of zeros for a tree of ``jax.ShapeDtypeStruct``."""
    return jax.tree.map(lambda struct: np.zeros(struct.shape, struct.dtype), structs)


def on_host(programs: Programs, packed: np.ndarray) -> jax.Array:
    """A packed batch where a step's program takes it."""
    return upload(packed, programs.on_host(packed.shape).sharding)


def uploaded(programs: Programs, arrays: Any) -> Any:
    """A tree of NumPy arrays, whole on every device."""
    return upload(arrays, programs.last_tokens.sharding)
