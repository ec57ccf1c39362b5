"""A layer's products with what surrounds them: three ops, and the one place that chooses kernels.

A decoder layer is a norm with the projections that read it, a norm with the gated half of the MLP,
and twice a projection that is added to the residual stream. Kernels compute each in one launch
where they know the shape; everywhere else the ops are the plain XLA functions of `linear.py`.
"""

from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.attention import Backend
from jaxinfer.kernels.linear import linear, rms_norm
from jaxinfer.kernels.rounding import narrow, rounded, rounded_add


def norm_project(
    x: Float[Array, "*batch I"],
    norm: Float[Array, " I"],
    weights: Sequence[Float[Array, "_ I"]],
    *,
    eps: float,
    backend: Backend = "xla",
) -> tuple[Float[Array, "*batch _"], ...]:
    """`rms_norm(x) @ weight.T` for every weight.

    Args:
        x: activations; its dtype is that of the results.
        norm: weight of the RMSNorm.
        weights: `[O, I]` each.
        eps: of the norm.
        backend: the engine's kernels; "xla" asks for none.
    """
    if kernels := _kernels(backend, x, weights):
        return kernels.norm_project(x, norm, weights, eps=eps)
    hidden = rms_norm(x, norm, eps)
    return tuple(linear(hidden, weight) for weight in weights)


def norm_gated(
    x: Float[Array, "*batch I"],
    norm: Float[Array, " I"],
    gate: Float[Array, "F I"],
    up: Float[Array, "F I"],
    *,
    eps: float,
    backend: Backend = "xla",
) -> Float[Array, "*batch F"]:
    """`silu(h @ gate.T) * (h @ up.T)` with `h = rms_norm(x)`; arguments as in `norm_project`.

    The first half of SwiGLU (https://arxiv.org/abs/2002.05202).
    """
    if kernels := _kernels(backend, x, (gate, up)):
        return kernels.norm_gated(x, norm, gate, up, eps=eps)
    hidden = rms_norm(x, norm, eps)
    opened = jax.nn.silu(linear(hidden, gate).astype(jnp.float32))
    return narrow(rounded(opened, x.dtype) * linear(hidden, up).astype(jnp.float32), x.dtype)


def project_add(
    x: Float[Array, "*batch I"],
    weight: Float[Array, "O I"],
    residual: Float[Array, "*batch O"],
    *,
    backend: Backend = "xla",
) -> Float[Array, "*batch O"]:
    """`residual + x @ weight.T`, the product rounded before it is added."""
    if kernels := _kernels(backend, x, (weight,)):
        return kernels.project_add(x, weight, residual)
    return rounded_add(residual, linear(x, weight))


def _kernels(backend: Backend, x: jax.Array, weights: Sequence[jax.Array]) -> ModuleType | None:
    """The module of kernels that takes these operands, or None where XLA does the work."""
    if backend != "mosaic" or x.ndim != 2:
        return None
    # They import GPU-only packages, so they load when they are first chosen.
    from jaxinfer.kernels.mosaic import skinny

    shapes = [weight.shape for weight in weights]
    return skinny if skinny.supports(x.shape[0], shapes, x.dtype) else None
