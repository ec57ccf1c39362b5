"""RMSNorm and products with weights stored `[out, in]`, in plain XLA: every platform's path.

Results are rounded to the model's dtype where Hugging Face's models round them.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.rounding import rounded_add


def linear(
    x: Float[Array, "*batch I"], weight: Float[Array, "O I"], bias: jax.Array | None = None
) -> Float[Array, "*batch O"]:
    """``x @ weight.T + bias`` with float32 accumulation and the result in ``x.dtype``."""
    product = contract(x, weight, x.dtype)
    return product if bias is None else rounded_add(product, bias)


def contract(
    x: Float[Array, "*batch I"], weight: Float[Array, "O I"], dtype: jax.typing.DTypeLike
) -> Float[Array, "*batch O"]:
    """``x @ weight.T`` accumulated in float32, with the result in ``dtype``."""
    return jax.lax.dot_general(
        x,
        weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=precision(x.dtype),
        preferred_element_type=jnp.dtype(dtype),
    )


def precision(dtype: jax.typing.DTypeLike) -> jax.lax.Precision | None:
    """Float32 means float32: GPUs would otherwise use TF32. A precision the caller set wins."""
    exact = dtype == jnp.float32 and jax.config.jax_default_matmul_precision is None
    return jax.lax.Precision.HIGHEST if exact else None
