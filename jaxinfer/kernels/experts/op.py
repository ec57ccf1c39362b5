"""Experts of a layer: a norm, a router's choice, and the weighted sum of what it chose.

The kernels of `mosaic/` compute both where they can; `xla.py` is every platform's path. All add a
token's experts up in a fixed order, so that other tokens change nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from jaxinfer.kernels.experts import xla
from jaxinfer.kernels.experts.codes import QuantizedExperts, are_codes
from jaxinfer.kernels.experts.groups import Groups, group
from jaxinfer.kernels.implementations import module_of
from jaxinfer.kernels.matmul.mosaic.small_plan import MOST_ROWS
from jaxinfer.kernels.matmul.op import Linear, ResidualStream, add, norm_project, normed, project
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.kernels.rounding import narrow

type Matrices = Sequence[jax.Array] | Sequence[QuantizedExperts]
"""Gate and up ``[X, F, E]`` and down ``[X, E, F]`` of all experts; or a device's share of F, or its
own experts."""


class Columns(NamedTuple):
    """What a kernel chose, a column a row; columns behind the rows hold anything.

    Attributes:
        chosen: as of `Routed`.
        weights: as of `Routed`, in float32.
        marks: 1 for each expert of a row, 0 for others and behind the rows; None where no kernel
            gives rows places, or where experts were numbered anew.
    """

    chosen: Int32[Array, "k P"]
    weights: Float[Array, "k P"]
    marks: Float[Array, "P X"] | None = None


class Logits(NamedTuple):
    """Of what a kernel chose, for one that chooses them anew with more to say of it.

    Attributes:
        values: of the router.
        normalize: weights of a token are divided by their sum.
    """

    values: Float[Array, "T X"]
    normalize: bool


class Routed(NamedTuple):
    """Tokens with their experts.

    Attributes:
        x: the residual stream ``[*batch, E]``, summed.
        hidden: its norm, by rows.
        chosen: the experts of each; X stands for none.
        weights: theirs; float32 or in the dtype of x, in which they are rounded.
        columns: the same, where a kernel made them.
        logits: of which `chosen` and `weights` follow, where a kernel made them.
    """

    x: Float[Array, "*batch E"]
    hidden: Float[Array, "T E"]
    chosen: Int32[Array, "T k"]
    weights: Float[Array, "T k"]
    columns: Columns | None = None
    logits: Logits | None = None

    def renumbered(self, chosen: Int32[Array, "T k"]) -> Routed:
        """The same with other numbers for the experts."""
        if chosen is self.chosen:
            return self
        columns = None
        if self.columns is not None:
            padding = self.columns.weights.shape[1] - len(chosen)
            anew = jnp.pad(chosen.T, ((0, 0), (0, padding)))
            columns = self.columns._replace(chosen=anew, marks=None)
        return self._replace(chosen=chosen, columns=columns, logits=None)


def route(
    residual: ResidualStream,
    norm: Float[Array, " E"],
    router: Float[Array, "X E"],
    num_chosen: int,
    *,
    normalize: bool,
    eps: float,
    kernels: Kernels = XLA,
) -> Routed:
    """The experts of each token, by the softmax over all of them, and their weights.

    Logits and weights are rounded to the dtype of the residual stream, where Hugging Face's models
    round them; the softmax is float32.

    Args:
        residual: the stream, whose norm the router and the experts read.
        norm: weight of the RMSNorm.
        router: its weight.
        num_chosen: k, at most X.
        normalize: weights of a token are divided by their sum.
        eps: of the norm.
        kernels: the policy.
    """
    x, hidden = normed(residual, norm, eps, kernels)
    hidden = hidden.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    mosaic = _module(kernels, x)
    if mosaic is None or not mosaic.choose.supports(len(router), num_chosen):
        chosen, weights = xla.route(hidden, router, num_chosen, normalize=normalize)
        return Routed(x, hidden, chosen, weights)
    logits = _logits(x, hidden, norm, router, eps, kernels)
    mark = mosaic.places.supports(len(hidden), len(router), hidden.shape[1])
    columns = Columns(*mosaic.choose.choose(logits, num_chosen, normalize=normalize, mark=mark))
    chosen, weights = (each[:, : len(hidden)].T for each in columns[:2])
    # Where the choice is made anew and nothing else reads it, XLA leaves this one's launch out.
    return Routed(x, hidden, chosen, weights, columns, Logits(logits, normalize))


def _logits(
    x: jax.Array,
    hidden: jax.Array,
    norm: jax.Array,
    router: jax.Array,
    eps: float,
    kernels: Kernels,
) -> Float[Array, "T X"]:
    """With few rows of a kernel that has the norm in it, so that nothing reads `hidden`."""
    if len(x) > MOST_ROWS:
        return project(hidden, Linear(router), kernels=kernels)
    stream, linears = ResidualStream(x), [Linear(router)]
    _, (logits,) = norm_project(stream, norm, linears, eps=eps, kernels=kernels)
    return logits


def mix_add(
    routed: Routed,
    norm: Float[Array, " E"],
    matrices: Matrices,
    *,
    is_token: Bool[Array, " T"] | None = None,
    eps: float,
    kernels: Kernels = XLA,
) -> ResidualStream:
    """The residual stream with the weighted sum of each token's experts added to it.

    Args:
        routed: of `route`.
        norm: the one given to it.
        matrices: of all experts.
        is_token: False for padding, which goes through no expert; a row that is alone is a token.
        eps: of the norm.
        kernels: the policy.
    """
    x = routed.x
    if few := _few_rows(kernels, x, matrices):
        return ResidualStream(_of_few_rows(few, routed, norm, matrices, is_token, eps, residual=x))
    return add(ResidualStream(x), _of_rows(routed, matrices, is_token, kernels), kernels=kernels)


def mix(
    routed: Routed,
    norm: Float[Array, " E"],
    matrices: Matrices,
    *,
    is_token: Bool[Array, " T"] | None = None,
    eps: float,
    kernels: Kernels = XLA,
    lacks_some: bool = False,
) -> Float[Array, "*batch E"]:
    """One device's part of what `mix_add` adds; its arguments, and further ones.

    Args:
        lacks_some: other devices may have experts that were chosen.
    """
    if few := _few_rows(kernels, routed.x, matrices):
        return _of_few_rows(few, routed, norm, matrices, is_token, eps, lacks_some=lacks_some)
    return _of_rows(routed, matrices, is_token, kernels)


def _of_few_rows(
    few: ModuleType,
    routed: Routed,
    norm: jax.Array,
    matrices: Matrices,
    is_token: jax.Array | None,
    eps: float,
    *,
    lacks_some: bool = False,
    residual: jax.Array | None = None,
) -> Float[Array, "T E"]:
    gate, up, down = matrices
    rows, listed = len(routed.x), _list(routed, is_token, len(gate), lacks_some=lacks_some)
    inner = few.gated(routed.x, norm, gate, up, listed, eps=eps)
    return few.project_add(inner, down, listed, rows, residual)


def _list(routed: Routed, is_token: jax.Array | None, num_experts: int, *, lacks_some: bool) -> Any:
    """The experts that few rows chose, as `few_rows.Listed`."""
    mosaic, columns, logits = module_of("mosaic", "experts"), routed.columns, routed.logits
    rows, k = routed.chosen.shape
    if rows == 1 and columns is not None and not lacks_some:  # The list is what it chose.
        chosen = routed.chosen.reshape(k)
        return mosaic.few_rows.Listed(jnp.full(1, k, jnp.int32), chosen, columns.weights)
    if columns is None or not mosaic.lists.supports(rows, num_experts):
        chosen = _of_tokens(routed.chosen, is_token, num_experts)
        return mosaic.few_rows.list_experts(chosen, routed.weights, num_experts)
    tokens = _tokens(is_token, columns, rows)
    if logits is not None and mosaic.lists.supports_logits(logits.values):
        return mosaic.lists.choose_and_list(logits.values, tokens, k, normalize=logits.normalize)
    return mosaic.lists.list_experts(*columns[:2], tokens, rows, num_experts)


def _of_rows(
    routed: Routed, matrices: Matrices, is_token: jax.Array | None, kernels: Kernels
) -> Float[Array, "*batch E"]:
    x, hidden, weights = routed.x, routed.hidden, routed.weights
    grouped, (gate, up, down) = _grouped(kernels, x, matrices), matrices
    if grouped is None:
        mixed = xla.mixture(hidden, routed.chosen, weights, gate, up, down, is_token=is_token)
        return mixed.reshape(x.shape)
    mosaic = module_of("mosaic", "experts")
    is_fused = _has_places(routed, len(gate)) and mosaic.fused.supports(gate.shape)
    tile_rows = mosaic.fused.ROWS if is_fused else grouped.tile_rows(routed.chosen.size, len(gate))
    groups, rows, counts = _place(routed, is_token, matrices, tile_rows, grouped)
    if is_fused:
        outputs = mosaic.fused.gated_project(rows, gate, up, down, groups.tiles, counts)
    else:
        inner = grouped.gated(rows, gate, up, groups.tiles, tile_rows)
        outputs = grouped.project(inner, down, groups.tiles, tile_rows)
    return narrow(groups.combine(outputs, weights), x.dtype)


def _place(
    routed: Routed,
    is_token: jax.Array | None,
    matrices: Matrices,
    tile_rows: int,
    grouped: ModuleType,
) -> tuple[Groups, Any, jax.Array | None]:
    """Rows at their places, and with few rows zeros to count in, as `places.Placed`."""
    hidden, columns, num_experts = routed.hidden, routed.columns, len(matrices[0])
    if columns is not None and _has_places(routed, num_experts):
        places = module_of("mosaic", "experts").places
        tokens = _tokens(is_token, columns, len(hidden))
        given = columns.chosen, columns.marks, tokens, hidden, num_experts, tile_rows
        return places.place(*given, codes=are_codes(matrices))
    chosen = _of_tokens(routed.chosen, is_token, num_experts)
    groups = group(chosen, num_experts, tile_rows)
    return groups, grouped.spread(hidden, groups.places, groups.num_places), None


def _has_places(routed: Routed, num_experts: int) -> bool:
    """Whether a kernel gives these rows places."""
    places = module_of("mosaic", "experts").places
    return routed.columns is not None and places.supports(
        len(routed.hidden), num_experts, routed.hidden.shape[1]
    )


def _tokens(is_token: Bool[Array, " T"] | None, columns: Columns, rows: int) -> Int32[Array, " P"]:
    """1 for columns of tokens, 0 for padding: one array for all layers of a step."""
    ones = jnp.ones(rows, jnp.int32) if is_token is None else is_token.astype(jnp.int32)
    return jnp.pad(ones, (0, columns.chosen.shape[1] - rows))


def _of_tokens(
    chosen: Int32[Array, "T k"], is_token: Bool[Array, " T"] | None, num_experts: int
) -> Int32[Array, "T k"]:
    """The experts of tokens, and none of padding."""
    return chosen if is_token is None else jnp.where(is_token[:, None], chosen, num_experts)


def _few_rows(kernels: Kernels, x: jax.Array, matrices: Matrices) -> ModuleType | None:
    """The kernels of few rows, if they take these."""
    if (mosaic := _module(kernels, x)) is None:
        return None
    few = mosaic.few_rows_codes if are_codes(matrices) else mosaic.few_rows
    return few if few.supports(len(x), matrices, x.dtype) else None


def _grouped(kernels: Kernels, x: jax.Array, matrices: Matrices) -> ModuleType | None:
    """The kernels of groups, if they take these."""
    if (mosaic := _module(kernels, x)) is None:
        return None
    grouped = mosaic.grouped_codes if are_codes(matrices) else mosaic.grouped
    return grouped if grouped.supports(x.dtype, matrices) else None


def _module(kernels: Kernels, x: jax.Array) -> ModuleType | None:
    """The kernels, if there are any for rows of whatever they are."""
    return module_of("mosaic", "experts") if kernels.backend == "mosaic" and x.ndim == 2 else None
