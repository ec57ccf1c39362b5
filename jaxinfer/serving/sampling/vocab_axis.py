"""The vocabulary split over a mesh axis, and a shard of it seen as blocks.

Exchanges between shards are here alone, and small. Blocks turn a large reduction into many small
ones that run side by side.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxinfer.kernels.collectives.tensor_axis import MeshAxes


@dataclass(frozen=True)
class VocabAxis:
    """The split of the vocabulary over devices: this device's part, and ways to combine parts.

    Attributes:
        name: Mesh axis inside `shard_map`; None if the logits are whole, and nothing is exchanged.
    """

    name: MeshAxes | None = None

    def offset(self, width: int) -> jax.Array | int:
        """Return the id of the first local token when each device holds `width` of them."""
        return 0 if self.name is None else lax.axis_index(self.name) * width

    def ids(self, width: int) -> jax.Array:
        """Return the ids of the local tokens, int32 `[width]`."""
        return jnp.arange(width, dtype=jnp.int32) + self.offset(width)

    def sum(self, x: jax.Array) -> jax.Array:
        """Add up over the devices."""
        return x if self.name is None else lax.psum(x, self.name)

    def stack(self, x: jax.Array) -> jax.Array:
        """Gather `[B, ...]` of every device as `[B, N, ...]`, in the order of the vocabulary."""
        if self.name is None:
            return x[:, None]
        return lax.all_gather(x, self.name, axis=1)

    def index(self) -> jax.Array | int:
        """Return this device's place on the axis."""
        return 0 if self.name is None else lax.axis_index(self.name)

    def whole(self, logits: jax.Array) -> jax.Array:
        """Gather full logits `[B, V]`: only for a user's callables."""
        if self.name is None:
            return logits
        return lax.all_gather(logits, self.name, axis=1, tiled=True)

    def local(self, logits: jax.Array, width: int) -> jax.Array:
        """Take this device's `width` columns of full logits."""
        if self.name is None:
            return logits
        return lax.dynamic_slice_in_dim(logits, self.offset(width), width, axis=1)

    def take(self, logits: jax.Array, ids: jax.Array) -> jax.Array:
        """Read `logits[b, ids[b, j]]`, float32 `[B, J]`, whichever device holds each."""
        if self.name is None:
            return jnp.take_along_axis(logits, ids, axis=1)
        width = logits.shape[1]
        local = ids - self.offset(width)
        mine = (local >= 0) & (local < width)
        values = jnp.take_along_axis(logits, jnp.clip(local, 0, width - 1), axis=1)
        # where, not a product: 0 times infinity is not 0.
        return lax.psum(jnp.where(mine, values, 0.0), self.name)


def block_width(vocab: int) -> int:
    """Return a width for blocks of a vocabulary: near its root, a divisor where there is one."""
    root = max(1, math.isqrt(vocab))
    divisors = [w for w in range(max(1, root // 4), 4 * root + 1) if vocab % w == 0]
    return min(divisors, key=lambda w: abs(w - root), default=root)


def split_blocks(logits: Float[Array, "B V"], axis: VocabAxis) -> tuple[jax.Array, jax.Array]:
    """Return logits as `[B, blocks, width]`, padded with -inf, and their ids `[blocks, width]`."""
    batch, vocab = logits.shape
    width = block_width(vocab)
    blocks = -(-vocab // width)
    if blocks * width > vocab:
        padding = ((0, 0), (0, blocks * width - vocab))
        logits = jnp.pad(logits, padding, constant_values=-jnp.inf)
    ids = jnp.arange(blocks * width, dtype=jnp.int32) + axis.offset(vocab)
    return logits.reshape(batch, blocks, width), ids.reshape(blocks, width)
