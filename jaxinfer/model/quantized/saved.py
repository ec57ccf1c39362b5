"""The tensors of compressed-tensors that a node is saved as."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jaxinfer.model.quantized import packing
from jaxinfer.model.quantized.quantization import (
    GROUP,
    INPUT_SCALE,
    NODE,
    SCALE,
    WEIGHT,
    ZERO,
    plain_path,
)

_NAMES = {
    WEIGHT: "weight",
    SCALE: "weight_scale",
    ZERO: "weight_zero_point",
    GROUP: "weight_g_idx",
    INPUT_SCALE: "input_scale",
}
_LARGEST_ZERO = 15


@dataclass(frozen=True)
class HostTensor:
    """A tensor of the files that the host makes of arrays when it writes it.

    Attributes:
        make: ``(*arrays on the host) -> array`` of this shape and dtype.
    """

    arrays: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: Any
    make: Callable[..., np.ndarray]


def on_host(tensor: Any) -> np.ndarray:
    """The values of an array of a device, or of a `HostTensor`."""
    if isinstance(tensor, HostTensor):
        return tensor.make(*(on_host(each) for each in tensor.arrays))
    return np.asarray(jax.device_get(tensor))


def saved_name(path: str, tensor_name: Callable[[str], str]) -> str:
    """The name in the files of the array at a path of any tree, if it is stored as it is."""
    plain, part = plain_path(path), path.rpartition(".")[2]
    if plain == path:
        return tensor_name(path)
    return f"{tensor_name(plain).removesuffix('.weight')}.{_NAMES[part]}"


def saved_tensors(path: str, leaf: Any, tensor_name: Callable[[str], str]) -> dict[str, Any]:
    """The tensors of an array of a node, by name: mostly itself.

    Raises:
        TypeError: it has another dtype than arrays of nodes have.
    """
    name, part = saved_name(path, tensor_name), path.rpartition(".")[2]
    if str(leaf.dtype) not in _DTYPES[part]:
        known = ", ".join(_DTYPES[part])
        raise TypeError(f"{name}: can't save dtype {leaf.dtype}; supported: {known}")
    if part == SCALE and len(leaf.shape) == 1:
        return {name: leaf[:, None]}
    if part == INPUT_SCALE:
        return {name: leaf.reshape(1)}
    if part == WEIGHT and leaf.dtype == np.uint8:
        outputs, width = leaf.shape
        words = (outputs, -(-width // 4))
        size = np.asarray([outputs, 2 * width], np.int64)
        return {
            f"{name}_packed": HostTensor((leaf,), words, np.dtype(np.int32), packing.words),
            f"{name}_shape": size,
        }
    if part == ZERO:
        shape = (-(-leaf.shape[0] // 8), leaf.shape[1])
        return {name: HostTensor((leaf,), shape, np.dtype(np.int32), _packed_zeros)}
    return {name: leaf}


def joined(name: str, parts: tuple[Any, ...]) -> Any:
    """The tensor whose rows are those of several projections.

    Raises:
        ValueError: they have one scale of inputs or one order of groups each, and these differ.
    """
    last = name.rpartition(".")[2]
    if last == "weight_shape":
        return np.asarray([sum(part[0] for part in parts), parts[0][1]], np.int64)
    if last in (_NAMES[GROUP], _NAMES[INPUT_SCALE]):
        first, *others = map(on_host, parts)
        if not all(np.array_equal(first, other) for other in others):
            raise ValueError(f"{name} can't be saved: the projections that share it differ")
        return parts[0]
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    return HostTensor(parts, shape, parts[0].dtype, lambda *rows: np.concatenate(rows))


_DTYPES: Mapping[str, tuple[str, ...]] = dict(
    zip(
        NODE,
        (("int8", "uint8", "float8_e4m3fn"), ("float32",), ("uint8",), ("int32",), ("float32",)),
        strict=True,
    )
)


def _packed_zeros(zeros: np.ndarray) -> np.ndarray:
    """Int32 ``[ceil(O / 8), G]`` of zero points ``[O, G]``."""
    if (zeros > _LARGEST_ZERO).any():
        raise ValueError("zero points of 16, which GPTQ's first version can hold, can't be saved")
    return np.ascontiguousarray(packing.packed_words(zeros.T).T)
