"""Projections with low-rank adapters, of which each token takes its own or none.

LoRA (https://arxiv.org/abs/2106.09685) adds ``B A x`` to a projection of x. The adapters of an
engine lie side by side, as slots of r ranks each, R in all, and so do the projections of a `group`
that read the same x: ``A`` is ``[n R, I]``. One product computes the ranks of all of them. In it
those that are not a token's own are set to zero, so that they add exact zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.matmul import xla
from jaxinfer.kernels.matmul.linear_leaf import LinearLeaf, OtherLinear
from jaxinfer.kernels.matmul.op import SILU_MUL_ROWS, AnyLinear, Linear, linear_of, project
from jaxinfer.kernels.matmul.separate import multiplied, opened
from jaxinfer.kernels.matmul.weight_form import WeightForm
from jaxinfer.kernels.policy import XLA, Kernels

_FEWEST_ROWS = 8  # of kernels; fewer are padded


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Owned:
    """The slots of tokens and of ranks.

    Attributes:
        slots: ``[T]``, of each token's adapter; -1 has none.
        owners: ``[n R]``, the slot that each rank belongs to.
        counts: ``[4, 2]``, zeros, which kernels count in and leave as they were (`LowRank`).
    """

    slots: Int32[Array, " S"]
    owners: Int32[Array, " ranks"]
    counts: Int32[Array, "4 2"]


@dataclass(frozen=True)
class AdaptedLinear(OtherLinear):
    """A projection, and what adapters add to it.

    Attributes:
        base: the projection without adapters.
        a: ``[n R, I]``, of the group, in the activations' dtype.
        b: ``[O, R]`` for its own ranks; its scale included.
        owned: whose ranks are whose.
        index: its place in the group.
        group_size: n.
        kernels: compute the projection without adapters.
    """

    base: AnyLinear
    a: Float[Array, "ranks I"]
    b: Float[Array, "O R"]
    owned: Owned
    index: int = 0
    group_size: int = 1
    kernels: Kernels = XLA

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        return self.base.shape

    @property
    def form(self) -> WeightForm:
        """A form that no kernel for codes knows."""
        return WeightForm(jnp.dtype(self.a.dtype), is_known=False)

    def of_outputs(self, select: Callable[[jax.Array], jax.Array]) -> "AdaptedLinear":
        """The projection to the outputs that `select` takes from an array ``[O, ...]``."""
        return replace(self, base=self.base.of_outputs(select), b=select(self.b))

    def product(
        self, x: Float[Array, "*batch I"], dtype: jax.typing.DTypeLike
    ) -> Float[Array, "*batch O"]:
        """The projection of `x ``[T, I]``, and what the tokens' adapters add."""
        return self._added(x, _ranks(x, self)).astype(dtype)

    def products(
        self, x: jax.Array, group: Sequence["AdaptedLinear"], kernels: Kernels
    ) -> tuple[jax.Array, ...]:
        """The projections of a group that reads `x ``[T, I]``."""
        medium = _medium(kernels, x, group, matrices=1)
        if medium is None:
            ranks = _ranks(x, self)
            return tuple(each._added(x, ranks) for each in group)
        rows, low_rank = _for_kernels(medium, x, group)
        products = medium.project(rows, [each.base.operand for each in group], low_rank)
        return tuple(product[: len(x)] for product in products)

    def gated(self, x: jax.Array, up: "AdaptedLinear", kernels: Kernels) -> jax.Array:
        """`silu(self(x)) * up(x)` for `x ``[T, I]``."""
        medium = _medium(kernels, x, (self, up), matrices=2)
        if medium is None:
            narrow, wide = self.products(x, (self, up), kernels)
            return _gated_product(narrow, wide, kernels)
        rows, low_rank = _for_kernels(medium, x, (self, up))
        return medium.gated(rows, self.base.operand, up.base.operand, low_rank)[: len(x)]

    def _added(self, x: jax.Array, ranks: jax.Array) -> jax.Array:
        """The projection, and what the group's masked ranks add to it, each rounded."""
        own = self.a.shape[0] // self.group_size
        mine = slice(self.index * own, (self.index + 1) * own)
        added = xla.contract(ranks[:, mine], self.b, x.dtype)
        # XLA adds up in the product itself where it can, so that nothing is written twice.
        return project(x, self.base, kernels=self.kernels) + added

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
    owned: Any
    index: int = field(default=0, metadata={"static": True})
    group_size: int = field(default=1, metadata={"static": True})
    kernels: Kernels = field(default=XLA, metadata={"static": True})

    def linear(self, form: Any) -> AdaptedLinear:
        """The projection."""
        base = linear_of({"weight": self.weight}, "weight", form)
        place = self.index, self.group_size
        return AdaptedLinear(base, self.a, self.b, self.owned, *place, self.kernels)


def adapted_layer(
    layer: Mapping[str, Any],
    slots: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, tuple[str, Sequence[str]]],
    owned: Mapping[str, Owned],
    kernels: Kernels,
) -> dict[str, Any]:
    """A layer's subtree with adapters in the place of the weights that have some.

    Args:
        layer: its parameters.
        slots: by group ``{"a": [n R, I], "b": {projection: ...}}``, as `AdaptedLinear` has them.
        groups: the part of the layer and the projections of each group.
        owned: of each group, for the tokens that it reads.
        kernels: as of `AdaptedLinear`.
    """
    adapted = dict(layer)
    for group, (part, names) in groups.items():
        a, of_outputs = slots[group]["a"], slots[group]["b"]
        for i, name in enumerate(names):
            own, place = (layer[part][name], a, of_outputs[name]), (i, len(names))
            leaf = AdaptedLeaf(*own, owned[group], *place, kernels)
            adapted[part] = {**adapted[part], name: leaf}
    return adapted


@jax.named_scope("adapters")
def _ranks(x: jax.Array, linear: AdaptedLinear) -> jax.Array:
    """The ranks of a group ``[T, n R]``; those that are not a token's own are zero."""
    ranks, owned = xla.contract(x, linear.a, x.dtype), linear.owned
    own = owned.slots[:, None] == owned.owners
    # Selected, not multiplied: what another adapter overflows to reaches no one else.
    return jnp.where(own, ranks, jnp.zeros_like(ranks))


def _gated_product(gate: jax.Array, up: jax.Array, kernels: Kernels) -> jax.Array:
    """`silu(gate) * up`, by a kernel where there is one that pays."""
    if kernels.backend == "mosaic" and len(gate) >= SILU_MUL_ROWS:
        silu_mul = module_of("mosaic", "silu_mul")
        if silu_mul.supports(gate.size, gate.dtype):
            return silu_mul.silu_mul(gate, up)
    return multiplied(opened(gate), up)


def _medium(kernels: Kernels, x: jax.Array, group: Sequence[Any], *, matrices: int) -> Any:
    """The kernels that add ranks to products of plain weights; None where XLA computes all."""
    plain = all(isinstance(each.base, Linear) for each in group)
    if not plain or kernels.backend != "mosaic" or x.ndim != 2:
        return None
    medium, shapes = module_of("mosaic", "medium"), [each.shape for each in group]
    rows, ranks = max(len(x), _FEWEST_ROWS), group[0].b.shape[1]
    fits = medium.choose(rows, shapes, x.dtype, matrices=matrices, ranks=ranks)
    return medium if fits else None


def _for_kernels(medium: Any, x: jax.Array, group: Sequence[AdaptedLinear]) -> tuple[Any, Any]:
    """The rows that kernels read, and what they add."""
    rows = jnp.pad(x, ((0, max(_FEWEST_ROWS - len(x), 0)), (0, 0)))
    a, owned, b = group[0].a, group[0].owned, tuple(each.b for each in group)
    return rows, medium.LowRank(a, b, owned.slots, owned.owners, owned.counts)
