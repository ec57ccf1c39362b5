"""Gathers small float32 arrays of the devices of an axis, on each of them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.rounding import narrow

_LINE = 1024  # elements that the kernel of small sums takes at a time
_PIECES = 3  # of eight bits each, which hold a float32's 24


def gather_parts(
    outputs: Float[Array, "*rows D"],
    log_sums: Float[Array, "*rows"],
    axis: TensorAxis,
    dtype: jax.typing.DTypeLike,
) -> tuple[Float[Array, "C *rows D"], Float[Array, "C *rows"]]:
    """Every device's partial attention, in the order of the axis, in float32.

    In one exchange: where devices have peer buffers as a sum to which each adds its own share and
    zeros, which rounds nothing. There outputs travel in `dtype`, bfloat16, and a logarithm in three
    numbers of it, which together are exact; elsewhere all are float32.

    Args:
        outputs: this device's, from `partial.partial_attention`.
        log_sums: of its sums, which may be minus infinity.
        axis: of the C devices.
        dtype: of activations.
    """
    log_sums = jnp.maximum(log_sums, -1e30)  # what differences and products with zero keep finite
    if axis.peers is None or jnp.dtype(dtype) != jnp.bfloat16:
        both = jnp.concatenate([outputs.astype(jnp.float32), log_sums[..., None]], axis=-1)
        gathered = jax.lax.all_gather(both, axis.name)
        return gathered[..., :-1], gathered[..., -1]
    pieces, rest = [], log_sums
    for _ in range(_PIECES):
        pieces.append(narrow(rest, dtype))
        rest = rest - pieces[-1].astype(jnp.float32)
    wide = outputs.astype(jnp.float32)
    own = jnp.concatenate([narrow(wide, dtype), jnp.stack(pieces, axis=-1)], axis=-1)
    flat = jnp.pad(own.ravel(), (0, -own.size % _LINE))
    mine = jnp.arange(axis.size)[:, None] == axis.index()
    summed = axis.sum(jnp.where(mine, flat, jnp.zeros((), dtype)))
    gathered = summed[:, : own.size].reshape(axis.size, *own.shape).astype(jnp.float32)
    D = outputs.shape[-1]
    return gathered[..., :D], gathered[..., D:].sum(-1)
