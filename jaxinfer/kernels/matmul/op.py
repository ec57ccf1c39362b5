"""A layer's products with what surrounds them: three ops, which choose kernels.

A decoder layer is a norm with the projections that read it, a norm with the gated half of the MLP,
and twice a projection that is added to the residual stream. With few rows a kernel computes each in
one launch; with more there are kernels for products alone. All else is XLA's (`matmul/xla.py`).

XLA writes no residual stream in a long prefill, but adds up the outputs of several layers in every
norm. With many rows, and before a norm that is written as codes (`normed_codes.py`), an addition is
left to that norm, whose kernel writes both (`ResidualStream.delta`); so is a small sum (`.peers`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.matmul import normed_codes, xla
from jaxinfer.kernels.matmul.linear_leaf import LinearLeaf, OtherLinear
from jaxinfer.kernels.matmul.mosaic.small_plan import MOST_ROWS
from jaxinfer.kernels.matmul.quantized import Form, QuantizedLinear
from jaxinfer.kernels.matmul.separate import SeparateProducts, multiplied, opened
from jaxinfer.kernels.norms.xla import rms_norm
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.kernels.rounding import rounded_add

# Up to this many rows XLA is asked for Triton's products (serving/programs/kinds), and merges all
# of one operand: they read weights where they lie, as pieces of whole `_MERGED_FEATURES` features.
MERGED_BELOW_ROWS = 128
_MERGED_FEATURES = 64

# Rows from which the elementwise kernels pay, which take time to lower and unmerged operands.
_ADD_NORM_ROWS = 256
SILU_MUL_ROWS = 1024


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Linear(SeparateProducts):
    """The weight of a projection as it is, a pytree; `QuantizedLinear` has the same interface.

    Attributes:
        weight: floating-point ``[out, in]``, as Hugging Face stores it; in a pytree of shardings or
            shapes, what stands for it there.
    """

    weight: Any
    form: ClassVar[None] = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        return self.weight.shape

    @property
    def operand(self) -> jax.Array:
        """The weight as kernels take it."""
        return self.weight

    def kernel_inputs(self, x: jax.Array, *norm: Any) -> tuple[jax.Array, Any]:
        """What a kernel reads, and the norm left to it."""
        return x, norm[0] if norm else None

    def of_outputs(self, select: Callable[[jax.Array], jax.Array]) -> "Linear":
        """The projection to the outputs that `select` takes from an array ``[O, ...]``."""
        return Linear(select(self.weight))

    def product(
        self, x: Float[Array, "*batch I"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "*batch O"]:
        """``x @ weight.T`` by XLA, accumulated in float32, in `dtype`."""
        return xla.contract(x, self.weight, dtype)

    def matrix(self, dtype: jax.typing.DTypeLike) -> Float[Array, "O I"]:
        """The weight, whose dtype is `dtype` already."""
        return self.weight

    def rows(self, indices: Int[Array, "*batch"]) -> Float[Array, "*batch I"]:
        """Rows of the weight, as an embedding is read.

        Indices are clamped to the last row; negative ones to the first.
        """
        return self.weight.at[indices].get(mode="clip", wrap_negative_indices=False)


AnyLinear = Linear | QuantizedLinear | OtherLinear
"""The weight of a projection. Parameter trees hold a plain array, or a dictionary of the arrays of
a `QuantizedLinear`: only dictionaries travel through `jax.export` without being registered."""


def linear_of(parent: Mapping[str, Any], name: str, form: Form | None = None) -> AnyLinear:
    """The projection `name`, such as "q_proj", from the subtree that holds its weight.

    Args:
        form: says how the inputs of a quantized projection are quantized; `ModelConfig` has it.

    Raises:
        KeyError: the subtree has no such projection.
    """
    leaf = parent[name]
    if isinstance(leaf, Mapping):
        return QuantizedLinear(**leaf, inputs=None if form is None else form.inputs)
    return leaf.linear(form) if isinstance(leaf, LinearLeaf) else Linear(leaf)


class ResidualStream(NamedTuple):
    """The residual stream: `x`, or `x + delta` where the next norm is to perform the addition.

    With `peers` (see `TensorAxis`), `delta` is this device's share of what is to be added, which
    the norm first sums over the devices; with `other`, the other device's share is here already.
    """

    x: Float[Array, "*batch E"]
    delta: Float[Array, "*batch E"] | None = None
    peers: Int32[Array, "N 2"] | None = None
    other: Float[Array, "*batch E"] | None = None

    def summed(self) -> Float[Array, "*batch E"]:
        """The stream as one array."""
        if self.delta is None:
            return self.x
        if self.other is not None:
            return rounded_add(self.x, rounded_add(self.delta, self.other))
        if self.peers is None:
            return rounded_add(self.x, self.delta)
        return module_of("mosaic", "all_reduce").all_reduce(self.delta, self.peers, onto=self.x)

    def of_rows(self, rows: Int32[Array, " B"]) -> "ResidualStream":
        """The given rows of the stream ``[T, E]``; indices beyond the last are clamped."""
        return ResidualStream(self.summed().at[rows].get(mode="clip"))


def begin(x: Float[Array, "*batch E"], *, kernels: Kernels = XLA) -> ResidualStream:
    """The stream that the first layer reads, of the same form as the one that it returns.

    Where additions are left to all norms, this one adds zeros: so all layers are traced as one.
    """
    return ResidualStream(x, jnp.zeros_like(x) if _leaves_additions(x, kernels) else None)


def begin_sum(
    share: Float[Array, "*batch E"], axis: TensorAxis, *, kernels: Kernels = XLA
) -> ResidualStream:
    """`begin` with the sum of all devices' `share`."""
    if axis.peers is not None and _has_few_rows(share, kernels):
        # As layers return it, whose sums `project_sum_add` performs at once.
        return begin(axis.sum(share), kernels=kernels)
    if _leaves_sums(share, axis, kernels) or _leaves_additions(share, kernels):
        return add_sum(ResidualStream(jnp.zeros_like(share)), share, axis, kernels=kernels)
    return begin(axis.sum(share), kernels=kernels)


def norm_project(
    residual: ResidualStream,
    norm: Float[Array, " I"],
    linears: Sequence[AnyLinear],
    *,
    eps: float,
    kernels: Kernels = XLA,
) -> tuple[ResidualStream, tuple[Float[Array, "*batch _"], ...]]:
    """`rms_norm(residual) @ weight.T` of every projection, and the residual, now summed.

    Args:
        residual: activations; their dtype is that of the results.
        norm: weight of the RMSNorm.
        linears: the projections, each with a weight `[O, I]`.
        eps: of the norm.
        kernels: the policy; `XLA` asks for none.

    Returns:
        The residual, and one product for each projection; or, where XLA would merge the products
        and "mosaic" kernels then need them cut apart, a single one with all their features in turn.
    """
    if module := _module(kernels, residual.x, linears):
        x, weights = residual.summed(), [linear.operand for linear in linears]
        inputs = linears[0].kernel_inputs(x, norm, eps)
        return ResidualStream(x), module.norm_project(*inputs, weights, eps=eps)
    if done := linears[0].form and normed_codes.project(residual, norm, linears, eps, kernels):
        return done
    x, hidden = normed(residual, norm, eps, kernels)
    return ResidualStream(x), _project(hidden, linears, kernels)


def norm_gated(
    residual: ResidualStream,
    norm: Float[Array, " I"],
    gate: AnyLinear,
    up: AnyLinear,
    biases: tuple[Float[Array, " F"], Float[Array, " F"]] | None = None,
    *,
    eps: float,
    kernels: Kernels = XLA,
) -> tuple[ResidualStream, Float[Array, "*batch F"]]:
    """`silu(gate(h)) * up(h)` with `h = rms_norm(residual)`, and the residual, now summed.

    The first half of SwiGLU (https://arxiv.org/abs/2002.05202). Both projections are `[F, I]`, and
    may have biases, of `gate` and of `up`, for which there is no kernel but `norm_project`'s; other
    arguments as in `norm_project`.
    """
    if biases is not None:
        residual, products = norm_project(residual, norm, (gate, up), eps=eps, kernels=kernels)
        if len(products) == 1:
            products = jnp.split(products[0], 2, axis=-1)
        narrow, widened = map(rounded_add, products, biases)
        return residual, multiplied(opened(narrow), widened)
    if module := _module(kernels, residual.x, (gate, up)):
        x = residual.summed()
        inputs, weights = gate.kernel_inputs(x, norm, eps), (gate.operand, up.operand)
        return ResidualStream(x), module.norm_gated(*inputs, *weights, eps=eps)
    if done := gate.form and normed_codes.gated(residual, norm, gate, up, eps, kernels):
        return done
    x, hidden = normed(residual, norm, eps, kernels)
    return ResidualStream(x), _gated(hidden, gate, up, kernels)


def project_add(
    x: Float[Array, "*batch I"],
    linear: AnyLinear,
    residual: ResidualStream,
    *,
    kernels: Kernels = XLA,
) -> ResidualStream:
    """`residual + x @ weight.T`, the product rounded before it is added."""
    if module := _module(kernels, x, (linear,)):
        x, _ = linear.kernel_inputs(x)
        return ResidualStream(module.project_add(x, linear.operand, residual.summed()))
    if linear.form and normed_codes.leaves_addition(residual, linear, kernels):
        return ResidualStream(residual.summed(), project(x, linear, kernels=kernels))
    return add(residual, project(x, linear, kernels=kernels), kernels=kernels)


def project(
    x: Float[Array, "*batch I"], linear: AnyLinear, *, kernels: Kernels = XLA
) -> Float[Array, "*batch O"]:
    """`x @ weight.T`, where nothing before or after it can be part of the same kernel."""
    if module := _module(kernels, x, (linear,)):
        return module.project(linear.kernel_inputs(x)[0], linear.operand)
    return _project(x, (linear,), kernels)[0]


def project_sum_add(
    x: Float[Array, "*batch I"],
    linear: AnyLinear,
    residual: ResidualStream,
    axis: TensorAxis,
    *,
    kernels: Kernels = XLA,
) -> ResidualStream:
    """`residual` + the sum of all devices' `x @ weight.T`, each of them rounded."""
    if axis.peers is not None and _have_kernels(kernels, x, (linear,)):
        small, weight = module_of("mosaic", "small"), linear.weight
        if small.supports_sum(x.shape[0], weight.shape, x.dtype, axis.size):
            return ResidualStream(small.project_sum_add(x, weight, residual.summed(), axis.peers))
    return add_sum(residual, project(x, linear, kernels=kernels), axis, kernels=kernels)


def add(
    residual: ResidualStream, delta: Float[Array, "*batch E"], *, kernels: Kernels = XLA
) -> ResidualStream:
    """`residual + delta`, performed now or left to the next norm."""
    x = residual.summed()
    if _leaves_additions(x, kernels):
        return ResidualStream(x, delta)
    return ResidualStream(rounded_add(x, delta))


def add_sum(
    residual: ResidualStream,
    share: Float[Array, "*batch E"],
    axis: TensorAxis,
    *,
    kernels: Kernels = XLA,
) -> ResidualStream:
    """`add` of the sum of all devices' `share`, computed now or left to the next norm."""
    x = residual.summed()
    if _leaves_sums(x, axis, kernels):
        return ResidualStream(x, share, axis.peers)
    if _leaves_additions(x, kernels):
        if axis.swaps:
            return ResidualStream(x, share, other=axis.swap(share))
        return ResidualStream(x, axis.sum(share))
    return ResidualStream(axis.sum(share, onto=x))


@jax.named_scope("norm")
def normed(
    residual: ResidualStream, norm: jax.Array, eps: float, kernels: Kernels
) -> tuple[jax.Array, jax.Array]:
    """The residual stream, summed, and its norm."""
    if residual.peers is not None and residual.delta is not None:
        all_reduce = module_of("mosaic", "all_reduce")
        return all_reduce.all_reduce_norm(residual.delta, residual.peers, residual.x, norm, eps=eps)
    if residual.delta is not None and _leaves_additions(residual.x, kernels):
        add_norm = module_of("mosaic", "add_norm")
        return add_norm.add_norm(residual.x, residual.delta, norm, residual.other, eps=eps)
    x = residual.summed()
    return x, rms_norm(x, norm, eps)


def _has_few_rows(x: jax.Array, kernels: Kernels) -> bool:
    return kernels.backend == "mosaic" and x.ndim == 2 and x.shape[0] <= MOST_ROWS


def _leaves_sums(x: jax.Array, axis: TensorAxis, kernels: Kernels) -> bool:
    if kernels.backend != "mosaic" or axis.peers is None:
        return False
    return module_of("mosaic", "all_reduce").supports_norm(x.shape, x.dtype, axis.size)


def _leaves_additions(x: jax.Array, kernels: Kernels) -> bool:
    if kernels.backend != "mosaic" or x.ndim != 2 or x.shape[0] < _ADD_NORM_ROWS:
        return False
    return module_of("mosaic", "add_norm").supports(x.shape[1], x.dtype)


def _project(
    hidden: jax.Array, linears: Sequence[AnyLinear], kernels: Kernels
) -> tuple[jax.Array, ...]:
    if _have_kernels(kernels, hidden, linears):
        medium, weights = module_of("mosaic", "medium"), [linear.weight for linear in linears]
        if medium.choose(hidden.shape[0], [weight.shape for weight in weights], hidden.dtype):
            return medium.project(hidden, weights)
        if len(weights) > 1 and _merges(hidden, weights):
            return (xla.linear(hidden, jnp.concatenate(weights)),)
    return linears[0].products(hidden, linears, kernels)


def _merges(hidden: jax.Array, weights: Sequence[jax.Array]) -> bool:
    """Whether XLA would compute these products as one, without a copy of the weights."""
    in_place = all(weight.shape[0] % _MERGED_FEATURES == 0 for weight in weights)
    return in_place and hidden.shape[0] < MERGED_BELOW_ROWS and hidden.dtype.itemsize == 2


def _gated(hidden: jax.Array, gate: AnyLinear, up: AnyLinear, kernels: Kernels) -> jax.Array:
    if _have_kernels(kernels, hidden, (gate, up)):
        medium, silu_mul = module_of("mosaic", "medium"), module_of("mosaic", "silu_mul")
        rows, shapes = hidden.shape[0], [gate.shape, up.shape]
        if medium.choose(rows, shapes, hidden.dtype, matrices=2):
            return medium.gated(hidden, gate.weight, up.weight)
        if rows >= SILU_MUL_ROWS and silu_mul.supports(rows * gate.shape[0], hidden.dtype):
            return silu_mul.silu_mul(*(each.product(hidden, hidden.dtype) for each in (gate, up)))
    return gate.gated(hidden, up, kernels)


def _module(kernels: Kernels, x: jax.Array, linears: Sequence[AnyLinear]) -> ModuleType | None:
    """The module of kernels that takes these operands, or None where XLA does the products."""
    if kernels.backend != "mosaic" or x.ndim != 2:
        return None
    small, (form, *others) = module_of("mosaic", "small"), {linear.form for linear in linears}
    shapes = [linear.shape for linear in linears]
    return small if not others and small.supports(len(x), shapes, x.dtype, form) else None


def _have_kernels(kernels: Kernels, x: jax.Array, linears: Sequence[AnyLinear]) -> bool:
    are_plain = all(isinstance(linear, Linear) for linear in linears)
    return are_plain and kernels.backend == "mosaic" and x.ndim == 2
