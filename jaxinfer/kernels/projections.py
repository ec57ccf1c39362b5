"""A layer's products with what surrounds them: three ops, and the one place that chooses kernels.

A decoder layer is a norm with the projections that read it, a norm with the gated half of the MLP,
and twice a projection that is added to the residual stream. Kernels compute each in one launch
where they know the shape. With many rows the products are XLA's, and kernels of their own take the
elementwise work between them: an addition to the stream waits there for the norm that follows it.
Everywhere else the ops are the plain XLA functions of `linear.py`.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxinfer.kernels.attention import Backend
from jaxinfer.kernels.linear import linear, rms_norm
from jaxinfer.kernels.rounding import narrow, rounded, rounded_add


class Stream(NamedTuple):
    """The residual stream: `x`, or `x + delta` where the next norm is to perform the addition."""

    x: Float[Array, "*batch E"]
    delta: Float[Array, "*batch E"] | None = None

    def settled(self) -> Float[Array, "*batch E"]:
        """The stream as one array."""
        return self.x if self.delta is None else rounded_add(self.x, self.delta)


def norm_project(
    stream: Stream,
    norm: Float[Array, " I"],
    weights: Sequence[Float[Array, "_ I"]],
    *,
    eps: float,
    backend: Backend = "xla",
) -> tuple[Stream, tuple[Float[Array, "*batch _"], ...]]:
    """`rms_norm(stream) @ weight.T` for every weight, and the stream, now settled.

    Args:
        stream: activations; their dtype is that of the results.
        norm: weight of the RMSNorm.
        weights: `[O, I]` each.
        eps: of the norm.
        backend: the engine's kernels; "xla" asks for none.
    """
    if kernels := _kernels(backend, stream.x, weights):
        x = stream.settled()
        return Stream(x), kernels.norm_project(x, norm, weights, eps=eps)
    x, hidden = _add_norm(stream, norm, eps, backend)
    return Stream(x), tuple(linear(hidden, weight) for weight in weights)


def norm_gated(
    stream: Stream,
    norm: Float[Array, " I"],
    gate: Float[Array, "F I"],
    up: Float[Array, "F I"],
    *,
    eps: float,
    backend: Backend = "xla",
) -> tuple[Stream, Float[Array, "*batch F"]]:
    """`silu(h @ gate.T) * (h @ up.T)` with `h = rms_norm(stream)`, and the stream, now settled.

    The first half of SwiGLU (https://arxiv.org/abs/2002.05202). Arguments as in `norm_project`.
    """
    if kernels := _kernels(backend, stream.x, (gate, up)):
        x = stream.settled()
        return Stream(x), kernels.norm_gated(x, norm, gate, up, eps=eps)
    x, hidden = _add_norm(stream, norm, eps, backend)
    return Stream(x), _silu_mul(linear(hidden, gate), linear(hidden, up), backend)


def project_add(
    x: Float[Array, "*batch I"],
    weight: Float[Array, "O I"],
    stream: Stream,
    *,
    backend: Backend = "xla",
) -> Stream:
    """`stream + x @ weight.T`, the product rounded before it is added."""
    if kernels := _kernels(backend, x, (weight,)):
        return Stream(kernels.project_add(x, weight, stream.settled()))
    return add(stream, linear(x, weight), backend=backend)


def add(stream: Stream, delta: Float[Array, "*batch E"], *, backend: Backend = "xla") -> Stream:
    """`stream + delta`, performed now or left to the next norm."""
    x = stream.settled()
    return Stream(x, delta) if _has_add_norm(x, backend) else Stream(rounded_add(x, delta))


def _add_norm(
    stream: Stream, norm: jax.Array, eps: float, backend: Backend
) -> tuple[jax.Array, jax.Array]:
    """The settled stream and its norm."""
    if not _has_add_norm(stream.x, backend):
        x = stream.settled()
        return x, rms_norm(x, norm, eps)
    from jaxinfer.kernels.mosaic import add_norm

    if stream.delta is None:
        return stream.x, add_norm.rms_norm(stream.x, norm, eps=eps)
    return add_norm.add_norm(stream.x, stream.delta, norm, eps=eps)


def _has_add_norm(x: jax.Array, backend: Backend) -> bool:
    if backend != "mosaic" or x.ndim != 2:
        return False
    from jaxinfer.kernels.mosaic import add_norm

    return add_norm.supports(x.shape[1], x.dtype)


def _silu_mul(gate: jax.Array, up: jax.Array, backend: Backend) -> jax.Array:
    if backend == "mosaic":
        from jaxinfer.kernels.mosaic import silu_mul

        if silu_mul.supports(gate.shape, gate.dtype):
            return silu_mul.silu_mul(gate, up)
    opened = jax.nn.silu(gate.astype(jnp.float32))
    return narrow(rounded(opened, gate.dtype) * up.astype(jnp.float32), gate.dtype)


def _kernels(backend: Backend, x: jax.Array, weights: Sequence[jax.Array]) -> ModuleType | None:
    """The module of kernels that takes these operands, or None where XLA does the products."""
    if backend != "mosaic" or x.ndim != 2:
        return None
    # They import GPU-only packages, so they load when they are first chosen.
    from jaxinfer.kernels.mosaic import skinny

    shapes = [weight.shape for weight in weights]
    return skinny if skinny.supports(x.shape[0], shapes, x.dtype) else None
