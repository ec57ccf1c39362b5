"""Takes a trainer's codes and scales as an engine's, without rounding them again."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.kernels import int4
from jaxinfer.model.quantized.quantization import SCALE, WEIGHT
from jaxinfer.rollouts.quantized_leaf import QuantizedLeaf
from jaxinfer.rollouts.targets import Target

Shape = tuple[int, ...]
_CODES = {"int8": "int8", "float8_e4m3fn": "fp8", "int4": "int4"}


def check_taken(
    path: str, leaf: QuantizedLeaf, shapes: tuple[Shape, Shape], target: Target
) -> None:
    """Check that codes and scales can become a target as they are.

    Args:
        path: in the trainer's tree, for messages.
        leaf: what is there.
        shapes: of codes and of scales, behind the mapping's transposition.

    Raises:
        ValueError: the engine's weight has another form; says both.
    """
    tiles, codes = _tiles(*shapes, target.shape), _CODES.get(str(jnp.dtype(leaf.dtype)))
    given = f"params[{path}] is quantized, {leaf.dtype} with scales {tuple(leaf.scale.shape)}"
    if tiles is None:
        raise ValueError(f"{given}, which can't become {target.path}, {target.shape}")
    if target.form is None:
        return
    scale = dict(target.arrays)[SCALE].shape
    has_zeros = target.form.zero_points or leaf.zero_point is not None
    if has_zeros or codes != target.form.codes or tiles != (*scale, 1)[:2]:
        raise ValueError(
            f"{given}, and the engine has {target.path} as {target.form.codes} with scales "
            f"{scale}{' and zero points' if has_zeros else ''}; give it the same form, or plain "
            "weights"
        )


def taken(leaf: QuantizedLeaf, target: Target) -> Any:
    """What an engine holds of codes and scales whose dimensions lie as the target's do."""
    tiles = _tiles(leaf.shape, leaf.scale.shape, target.shape)
    if tiles is None:
        raise ValueError(f"{leaf.scale.shape} are no scales of {target.path}")
    codes, scale = leaf.qvalue.reshape(target.shape), leaf.scale.reshape(tiles)
    scale = scale.astype(jnp.float32)
    if target.form is None:
        wide = codes.astype(jnp.float32)
        if leaf.zero_point is not None:
            zero = leaf.zero_point.astype(jnp.float32)
            wide -= _spread(jnp.broadcast_to(zero, leaf.scale.shape).reshape(tiles), target.shape)
        return (wide * _spread(scale, target.shape)).astype(target.dtype)
    if target.form.codes == "int4":
        codes = int4.pack((codes.astype(jnp.int8) + int4.SYMMETRIC_ZERO).astype(jnp.uint8))
    return {WEIGHT: codes, SCALE: scale.reshape(dict(target.arrays)[SCALE].shape)}


def _spread(tiles: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A value for each element, of one for each tile."""
    for axis in (0, 1):
        tiles = jnp.repeat(tiles, shape[axis] // tiles.shape[axis], axis=axis)
    return tiles


def _tiles(
    codes: tuple[int, ...], scale: tuple[int, ...], matrix: tuple[int, ...]
) -> tuple[int, int] | None:
    """Tiles of rows and of columns, where dimensions of codes are merged to a matrix's two.

    None where they can't be, or where a merged dimension's tiles are not of elements in turn.
    """
    if len(codes) != len(scale) or len(matrix) != 2 or math.prod(codes) != math.prod(matrix):
        return None
    products = [1, *itertools.accumulate(codes, lambda a, b: a * b)]
    if matrix[0] not in products:
        return None
    split = products.index(matrix[0])
    sides = [(codes[:split], scale[:split]), (codes[split:], scale[split:])]
    counts = []
    for sizes, tiles in sides:
        whole = [size == tile for size, tile in zip(sizes, tiles, strict=True)]
        # First dimensions with a scale each, then one of tiles, then dimensions that share one.
        rest = list(itertools.dropwhile(lambda each: each[0], zip(whole, tiles, strict=True)))
        if any(tile != 1 for _, tile in rest[1:]):
            return None
        counts.append(math.prod(tiles))
    return counts[0], counts[1]
