"""A projection with low-rank adapters, of which each token takes its own or none.

LoRA (https://arxiv.org/abs/2106.09685) adds ``B A x`` to a projection of x. The adapters of an
engine lie side by side, as L slots of r ranks: ``A`` is ``[L r, I]``, ``B`` ``[O, L r]``. For any
mixture of tokens two products compute all of it: between them the ranks that are not a token's own
are set to zero, and add exact zeros.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from jaxinfer.kernels.matmul import xla
from jaxinfer.kernels.matmul.linear_leaf import LinearLeaf, OtherLinear
from jaxinfer.kernels.matmul.op import AnyLinear, linear_of, project
from jaxinfer.kernels.matmul.weight_form import WeightForm
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.kernels.rounding import rounded_add


@dataclass(frozen=True)
class AdaptedLinear(OtherLinear):
    """A projection, and what adapters add to it.

    Attributes:
        base: the projection without adapters.
        a: ``[L r, I]``, in the activations' dtype.
        b: ``[O, L r]``, its scale included.
        own: bool ``[T, L r]``, the ranks of each token's own adapter.
        kernels: compute the projection without adapters.
    """

    base: AnyLinear
    a: Float[Array, "ranks I"]
    b: Float[Array, "O ranks"]
    own: Bool[Array, "T ranks"]
    kernels: Kernels = XLA

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        return self.base.shape

    @property
    def form(self) -> WeightForm:
        """A form that no kernel knows."""
        return WeightForm(jnp.dtype(self.a.dtype), is_known=False)

    def of_outputs(self, select: Callable[[jax.Array], jax.Array]) -> "AdaptedLinear":
        """The projection to the outputs that `select` takes from an array ``[O, ...]``."""
        return replace(self, base=self.base.of_outputs(select), b=select(self.b))

    def product(
        self, x: Float[Array, "*batch I"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "*batch O"]:
        """The projection of `x ``[T, I]``, rounded, and what the tokens' adapters add, likewise."""
        output = project(x, self.base, kernels=self.kernels)
        with jax.named_scope("adapters"):
            ranks = xla.contract(x, self.a, x.dtype)
            # Selected, not multiplied: what another adapter overflows to reaches no one else.
            ranks = jnp.where(self.own, ranks, jnp.zeros_like(ranks))
            added = xla.contract(ranks, self.b, x.dtype)
            return rounded_add(output, added).astype(dtype)

    def rows(self, indices: jax.Array) -> jax.Array:
        """Embeddings have no adapters."""
        raise NotImplementedError("embeddings have no adapters")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdaptedLeaf(LinearLeaf):
    """A weight, as parameter trees hold it, with adapters: a pytree; else as `AdaptedLinear`."""

    weight: Any
    a: Any
    b: Any
    own: Any
    kernels: Kernels = field(default=XLA, metadata={"static": True})

    def linear(self, form: Any) -> AdaptedLinear:
        """The projection."""
        base = linear_of({"weight": self.weight}, "weight", form)
        return AdaptedLinear(base, self.a, self.b, self.own, self.kernels)


def own_ranks(
    slots: Int32[Array, " T"], num_slots: int, ranks: int
) -> Bool[Array, "T slots_times_ranks"]:
    """Which of all slots' ranks are each token's own.

    Args:
        slots: the slot of each token's adapter; -1 has none.
        num_slots: L.
        ranks: r, of each slot.
    """
    return jnp.repeat(slots[:, None] == jnp.arange(num_slots, dtype=jnp.int32), ranks, axis=1)


def adapted_layer(
    layer: Mapping[str, Any],
    adapters: Mapping[str, Mapping[str, Mapping[str, Any]]],
    own: Mapping[str, Any],
    kernels: Kernels,
) -> dict[str, Any]:
    """A layer's subtree with adapters in the place of the weights that have some.

    Args:
        layer: its parameters.
        adapters: by part of the layer and projection: ``{"a": [L r, I], "b": [O, L r]}``.
        own: by projection: `AdaptedLinear.own` of the tokens that it reads.
        kernels: as of `AdaptedLinear`.
    """
    adapted = dict(layer)
    for part, projections in adapters.items():
        leaves = {
            name: AdaptedLeaf(layer[part][name], each["a"], each["b"], own[name], kernels)
            for name, each in projections.items()
        }
        adapted[part] = {**layer[part], **leaves}
    return adapted
