"""The weight of a projection in a quantized format, and its products by XLA.

XLA multiplies by the plain weight that codes and scales stand for: of every format the same product
as of an unquantized model with this weight, and the reference for kernels that read codes. On GPUs
it multiplies codes by codes where inputs have one scale a token.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxinfer.kernels import fp8, int4, int8
from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.matmul import xla
from jaxinfer.kernels.matmul.separate import SeparateProducts
from jaxinfer.kernels.matmul.weight_form import GROUP, TILE, InputScaling, WeightForm
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import Kernels
from jaxinfer.kernels.rounding import narrow


@runtime_checkable
class Form(Protocol):
    """What a model's config says of its quantized weights beside their arrays."""

    @property
    def inputs(self) -> InputScaling | None:
        """How inputs of products are quantized; None leaves them as they are."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedLinear(SeparateProducts):
    """The weight of a projection as codes with scales; a pytree, whose arrays trees hold by name.

    Attributes:
        weight: int8 or float8_e4m3fn ``[O, I]``; or uint8 ``[O, I / 2]``, two integers of four bits
            in each (`kernels/int4.py`).
        scale: float32, by which codes are multiplied: ``[O]``, or ``[O / a, I / b]`` for blocks of
            ``a`` outputs by ``b`` inputs.
        zero: uint8 ``[O, I / b]``, the zero points of 4-bit integers; None is 8 for all.
        group: int32 ``[I]``, the column of `scale` that each input's is in; None where groups
            are ``b`` inputs in turn.
        input_scale: float32 ``[]``, of inputs that are quantized by one scale for all.
        inputs: how the product's inputs are quantized, to the dtype of `weight`; None leaves them.
    """

    weight: Any
    scale: Any
    zero: Any = None
    group: Any = None
    input_scale: Any = None
    inputs: InputScaling | None = field(default=None, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        outputs, width = self.weight.shape
        return (outputs, 2 * width if self.weight.dtype == jnp.uint8 else width)

    @property
    def operand(self) -> "QuantizedLinear":
        """The weight as kernels take it."""
        return self

    @property
    def form(self) -> WeightForm:
        """What kernels must know of it."""
        outputs, inputs = self.shape
        rows, groups = (*self.scale.shape, 1)[:2]
        form = WeightForm(
            dtype=jnp.dtype(self.weight.dtype),
            is_grouped=self.scale.ndim == 2,
            has_zeros=self.zero is not None,
            inputs=self.inputs,
        )
        if form.is_grouped:
            known = inputs == groups * GROUP and (rows == outputs or outputs % (rows * TILE) == 0)
            known = known and not (form.multiplies_codes and form.dtype != fp8.FP8)
        else:
            known = rows == outputs and not form.has_zeros and not form.multiplies_codes
        return replace(form, is_known=known and self.group is None)

    def kernel_inputs(
        self, x: Float[Array, "B I"], norm: jax.Array | None = None, eps: float = 0.0
    ) -> tuple[Float[Array, "B I"], jax.Array | None]:
        """What a kernel reads, and the norm left to it.

        A kernel quantizes inputs by groups alone. Others are rounded before, after their norm.
        """
        if self.inputs in (None, "group"):
            return x, norm
        return self.rounded_inputs(x if norm is None else rms_norm(x, norm, eps)), None

    def of_outputs(self, select: Callable[[jax.Array], jax.Array]) -> "QuantizedLinear":
        """The projection to the outputs that `select` takes from an array ``[O, ...]``."""
        weight = select(self.weight)
        if weight is self.weight:
            return self  # with its blocks
        scale = jnp.repeat(self.scale, self.shape[0] // self.scale.shape[0], axis=0)
        zero = None if self.zero is None else select(self.zero)
        return replace(self, weight=weight, scale=select(scale), zero=zero)

    def product(
        self, x: Float[Array, "*batch I"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "*batch O"]:
        """``x @ matrix.T`` in `dtype`; inputs quantized where they are."""
        if self.inputs in ("token", "tensor") and self.scale.ndim == 1:
            # Tensor cores multiply codes; a CPU's products of 8 bits are slow loops.
            of_codes, by_matrix = (_product_of_codes, _product_by_matrix)
            return jax.lax.platform_dependent(
                self,
                x,
                cuda=functools.partial(of_codes, dtype=dtype),
                default=functools.partial(by_matrix, dtype=dtype),
            )
        return _product_by_matrix(self, x, dtype)

    def products(
        self, x: jax.Array, group: Sequence[Any], kernels: Kernels
    ) -> tuple[jax.Array, ...]:
        """The projections of `x ``[*batch, I]`` by a group, of which this is the first."""
        if module := module_of_codes(kernels, x, group):
            return module.project(x, group)
        return super().products(x, group, kernels)

    def gated(self, x: jax.Array, up: Any, kernels: Kernels) -> jax.Array:
        """`silu(self(x)) * up(x)` for `x ``[*batch, I]``."""
        if module := module_of_codes(kernels, x, (self, up)):
            return module.gated(x, self, up)
        return super().gated(x, up, kernels)

    def matrix(self, dtype: jax.typing.DTypeLike) -> Float[Array, "O I"]:
        """The plain weight that codes and scales stand for, rounded to `dtype`."""
        outputs, inputs = self.shape
        codes = int4.unpack(self.weight) if self.weight.dtype == jnp.uint8 else self.weight
        codes = codes.astype(jnp.float32)
        if self.weight.dtype == jnp.uint8:
            codes -= int4.SYMMETRIC_ZERO if self.zero is None else self._of_inputs(self.zero)
        scale = self.scale[:, None] if self.scale.ndim == 1 else self._of_inputs(self.scale)
        scale = jnp.repeat(scale, outputs // scale.shape[0], axis=0)
        return narrow(codes * jnp.broadcast_to(scale, (outputs, inputs)), dtype)

    def rows(self, indices: Int[Array, "*batch"]) -> Float[Array, "*batch I"]:
        """Rows of the weight, as an embedding is read, in float32.

        Indices are clamped to the last row; negative ones to the first.
        """
        flat = indices.reshape(-1)
        found = self.of_outputs(
            lambda leaf: leaf.at[flat].get(mode="clip", wrap_negative_indices=False)
        )
        return found.matrix(jnp.float32).reshape(*indices.shape, -1)

    def rounded_inputs(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch I"]:
        """What is left of a product's inputs once they were quantized, in their dtype."""
        if self.inputs is None:
            return x
        if x.dtype == jnp.float16:  # rounding reads a value three times, and XLA repeats its past
            x = jax.lax.optimization_barrier(x)
        codes, scale = self.quantized_inputs(x)
        return narrow(codes.astype(jnp.float32) * scale[..., None], x.dtype).reshape(x.shape)

    def quantized_inputs(self, x: Float[Array, "*batch I"]) -> tuple[jax.Array, jax.Array]:
        """A product's inputs as codes ``[*batch, G, n]`` and float32 scales ``[*batch, G]``."""
        if self.inputs == "tensor":
            scaled = (x.astype(jnp.float32) / self.input_scale)[..., None, :]
            is_nan = jnp.isnan(scaled).any(axis=-1)
            scale = jnp.where(is_nan, jnp.nan, self.input_scale)
            if self.weight.dtype == jnp.int8:
                return jnp.clip(jnp.round(scaled), -128, 127).astype(jnp.int8), scale
            return fp8.rounded(fp8.saturated(scaled)).astype(fp8.FP8), scale
        size = self.shape[1] // self.scale.shape[1] if self.inputs == "group" else x.shape[-1]
        groups = x.reshape(*x.shape[:-1], -1, size)
        return (int8 if self.weight.dtype == jnp.int8 else fp8).quantize(groups)

    def _of_inputs(self, blocks: jax.Array) -> jax.Array:
        """Float32 ``[_, I]``: for each input what its block has."""
        wide = blocks.astype(jnp.float32)
        if self.group is not None:
            return wide[:, self.group]
        return jnp.repeat(wide, self.shape[1] // blocks.shape[1], axis=1)


def module_of_codes(kernels: Kernels, x: jax.Array, linears: Sequence[Any]) -> ModuleType | None:
    """The module of kernels for more rows of codes than few, or None where XLA multiplies.

    Args:
        kernels: the policy.
        x: inputs.
        linears: the projections that read them; there is none for a plain one among them.
    """
    if kernels.backend != "mosaic" or x.ndim != 2:
        return None
    modules = (module_of("mosaic", op) for op in ("large", "medium_codes"))
    return next((each for each in modules if each.supports(len(x), x.dtype, linears)), None)


def _product_of_codes(own: QuantizedLinear, x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Codes times codes, of one scale a token or for all, and one an output.

    Integers are summed exactly; float8_e4m3fn as GPUs do by default, with some 14 bits on Hopper.
    """
    codes, scale = own.quantized_inputs(x)
    sums = jax.lax.dot_general(
        codes.reshape(x.shape),
        own.weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        preferred_element_type=jnp.int32 if own.weight.dtype == jnp.int8 else jnp.float32,
    )
    return narrow(sums.astype(jnp.float32) * scale * own.scale, dtype)


def _product_by_matrix(
    own: QuantizedLinear, x: jax.Array, dtype: jax.typing.DTypeLike
) -> jax.Array:
    """Inputs times the plain weight."""
    # Rounded before the barrier, inputs of several products are rounded once. The barrier keeps XLA
    # from making matrices of all layers at once, or before a loop.
    x, own = jax.lax.optimization_barrier((own.rounded_inputs(x), own))
    return xla.contract(x, own.matrix(x.dtype), dtype)
