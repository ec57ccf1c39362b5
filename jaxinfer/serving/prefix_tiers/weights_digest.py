"""A digest of all of a model's weights, computed where they lie."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_SEEDS = (0x243F6A88, 0x85A308D3)  # digits of pi
_GOLDEN = 0x9E3779B9
_WORDS = {1: jnp.uint8, 2: jnp.uint16}


def weights_digest(params: Any) -> str:
    """A digest of a parameter tree: of every path, shape, dtype and value.

    Each device reads its part of the weights once, at the speed of its memory, and compiles a
    program for each shape: 16 GB take two cores of a CPU 3 seconds, and a GPU a small part of one
    beside the compilation. It is the same whether a caller gave the arrays or files did. Codes of
    quantized weights have another one than the weights.

    Two sums of 32 bits a leaf tell weights apart that training or another checkpoint makes; nobody
    who wants two trees to collide is kept from it.

    Args:
        params: a tree of arrays, all of which this process can read.

    Returns:
        64 hexadecimal digits, independent of how the arrays are split over devices.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        # One after the other, as emulated devices need it.
        values = jax.device_get(_sums(leaf)).tolist()
        text = f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype} {values}\n"
        digest.update(text.encode())
    return digest.hexdigest()


@jax.jit
def _sums(leaf: jax.Array) -> jax.Array:
    """Uint32 ``[2]``: sums modulo 2**32 over hashes of each value with its place."""
    words = _words(leaf)
    place = jnp.zeros(words.shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(words.ndim)):
        of_axis = lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        place = place + of_axis * jnp.uint32(stride % 2**32)
        stride *= words.shape[axis]
    place = place * jnp.uint32(_GOLDEN)
    hashes = [_mixed(words ^ _mixed(place ^ jnp.uint32(seed))) for seed in _SEEDS]
    # One reduction of both, for which a CPU takes a third of the time of two.
    zeros, axes = [jnp.uint32(0)] * len(hashes), range(words.ndim)
    return jnp.stack(lax.reduce(hashes, zeros, _added, tuple(axes)))


def _added(left: list[jax.Array], right: list[jax.Array]) -> list[jax.Array]:
    return [x + y for x, y in zip(left, right, strict=True)]


def _words(leaf: jax.Array) -> jax.Array:
    """The bits of each value as uint32; values of 64 bits are two."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = lax.bitcast_convert_type(leaf, _WORDS.get(leaf.dtype.itemsize, jnp.uint32))
    return leaf.astype(jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """MurmurHash3's finalizer: every bit of `x` changes about half of the result's."""
    x = (x ^ (x >> jnp.uint32(16))) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> jnp.uint32(13))) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> jnp.uint32(16))
