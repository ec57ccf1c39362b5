"""The product of SwiGLU's halves (https://arxiv.org/abs/2002.05202), behind their projections."""

import jax
import jax.numpy as jnp

from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.policy import Kernels
from jaxinfer.kernels.rounding import narrow, rounded

SILU_MUL_ROWS = 1024
"""Rows from which the elementwise kernel pays, which takes time to lower."""


def gated_product(gate: jax.Array, up: jax.Array, kernels: Kernels) -> jax.Array:
    """`silu(gate) * up` of two arrays ``[T, F]``, by a kernel where there is one that pays."""
    if kernels.backend == "mosaic" and gate.ndim == 2 and len(gate) >= SILU_MUL_ROWS:
        silu_mul = module_of("mosaic", "silu_mul")
        if silu_mul.supports(gate.size, gate.dtype):
            return silu_mul.silu_mul(gate, up)
    return multiplied(opened(gate), up)


def opened(gate: jax.Array) -> jax.Array:
    """Its SiLU, rounded to its dtype, in float32."""
    return rounded(jax.nn.silu(gate.astype(jnp.float32)), gate.dtype)


def multiplied(opened: jax.Array, up: jax.Array) -> jax.Array:
    """The product of `opened` and the other half, rounded."""
    return narrow(opened * up.astype(jnp.float32), up.dtype)
