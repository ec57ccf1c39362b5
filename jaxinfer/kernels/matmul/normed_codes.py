"""Products of codes behind a norm that is written as codes, by the kernel that adds up the stream.

They are products with weights whose inputs are quantized by groups, of as many rows as
`module_of_codes` takes. An addition before such a norm is left to it, also of fewer rows than other
norms are left theirs. The last norm and a router's are written as they are: XLA adds before them.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
from jaxtyping import Array, Float

from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.matmul.quantized import module_of_codes
from jaxinfer.kernels.policy import Kernels


def project(
    residual: Any, norm: Float[Array, " I"], linears: Sequence[Any], eps: float, kernels: Kernels
) -> tuple[Any, tuple[Float[Array, "B _"], ...]] | None:
    """`norm_project` of a `ResidualStream`, or None where the norm is to be written as it is."""
    return _multiply(residual, norm, linears, eps, kernels, matrices=1)


def gated(
    residual: Any, norm: Float[Array, " I"], gate: Any, up: Any, eps: float, kernels: Kernels
) -> tuple[Any, Float[Array, "B F"]] | None:
    """`norm_gated`, in the same way."""
    done = _multiply(residual, norm, (gate, up), eps, kernels, matrices=2)
    return done and (done[0], done[1][0])


def leaves_addition(residual: Any, linear: Any, kernels: Kernels) -> bool:
    """Whether the norm behind a product with this weight is to add it to a `ResidualStream`.

    An embedding's reader can't know it, so where `begin` leaves none the first layer is traced by
    itself.
    """
    return _module(residual, (linear,), kernels) is not None


def _multiply(
    residual: Any,
    norm: jax.Array,
    linears: Sequence[Any],
    eps: float,
    kernels: Kernels,
    *,
    matrices: int,
) -> tuple[Any, tuple[jax.Array, ...]] | None:
    module = _module(residual, linears, kernels)
    if module is None:
        return None
    with jax.named_scope("norm"):
        add_norm_codes = module_of("mosaic", "add_norm_codes").add_norm_codes
        x, *codes = add_norm_codes(residual.x, norm, residual.delta, residual.other, eps=eps)
    products = module.multiply(*codes, linears, x.dtype, matrices=matrices)
    settled = residual._replace(x=x, delta=None, other=None)
    return settled, tuple(product[: len(x)] for product in products)


def _module(residual: Any, linears: Sequence[Any], kernels: Kernels) -> ModuleType | None:
    """`module_of_codes`, or None also where the norm's kernel can't write codes."""
    if not linears[0].form.multiplies_codes or residual.peers is not None:
        return None
    x, module = residual.x, module_of_codes(kernels, residual.x, linears)
    if module is None or not module_of("mosaic", "add_norm_codes").supports(x.shape[1], x.dtype):
        return None
    return module
