"""What XLA computes where no kernel takes several projections at once."""

from collections.abc import Sequence
from typing import Any

import jax

from jaxinfer.kernels.matmul.gating import multiplied, opened
from jaxinfer.kernels.policy import Kernels


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
