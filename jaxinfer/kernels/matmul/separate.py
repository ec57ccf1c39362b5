"""What XLA computes where no kernel takes several projections at once."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer.kernels.policy import Kernels
from jaxinfer.kernels.rounding import narrow, rounded


class SeparateProducts:
    """Projections with a `product` each, of which a group is computed one by one."""

    product: Any

    def products(
        self, x: jax.Array, group: Sequence[Any], kernels: Kernels
    ) -> tuple[jax.Array, ...]:
        """The projections of `x ``[*batch, I]`` by a group, of which this is the first."""
        return tuple(each.product(x, x.dtype) for each in group)

    def gated(self, x: jax.Array, up: Any, kernels: Kernels) -> jax.Array:
        """`silu(self(x)) * up(x)` for `x ``[*batch, I]``."""
        half = opened(self.product(x, x.dtype))
        return multiplied(half, up.product(x, x.dtype))


def opened(gate: jax.Array) -> jax.Array:
    """Its SiLU, rounded to its dtype, in float32."""
    return rounded(jax.nn.silu(gate.astype(jnp.float32)), gate.dtype)


def multiplied(opened: jax.Array, up: jax.Array) -> jax.Array:
    """The product of `opened` and SwiGLU's other half, rounded."""
    return narrow(opened * up.astype(jnp.float32), up.dtype)
