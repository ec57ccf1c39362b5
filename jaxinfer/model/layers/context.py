"""What a layer is given besides its parameters and the residual stream: one value."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Int32

from jaxinfer.kernels.collectives.tensor_axis import TensorAxis
from jaxinfer.kernels.matmul.op import ResidualStream
from jaxinfer.kernels.policy import XLA, Kernels
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.layer_kind import LayerKind

Params = Mapping[str, Any]
"""A tree of parameters, or a part of it."""
Heads = tuple[jax.Array, ...]
"""Projected heads: queries ``[..., H, D]``, keys and values ``[..., K, D]``, in three arrays; with
"mosaic" kernels possibly in a single one, ``[..., H + 2K, D]``, in this order."""
Rotation = tuple[jax.Array, ...]
"""Cosines and sines ``[..., D]`` of each token's rotation, in the model's dtype; behind them what a
family's own `write_heads` reads besides, one for each token."""
Attend = Callable[[Params, Heads], jax.Array]
"""``(attention parameters, heads) -> [..., H, D]``."""
Tap = Callable[[str, jax.Array], None]
"""Receives activations by name, as they are computed."""


@runtime_checkable
class LayerTokens(Protocol):
    """What the rows and tokens of a step bring: T packed tokens of B rows."""

    @property
    def positions(self) -> Any:
        """Int32 ``[T]``, absolute positions."""

    @property
    def slot_mapping(self) -> Any:
        """Int32 ``[T]``, where keys and values go; 0 for padding."""

    @property
    def cu_seqlens(self) -> Any:
        """Int32 ``[B + 1]``, where each row begins in the tokens."""

    @property
    def context_lens(self) -> Any:
        """Int32 ``[B]``, keys of each row; 0 for padding."""

    @property
    def of_tokens(self) -> Mapping[str, Any]:
        """``[T]`` each, by name: what an engine declares beyond these."""
        ...

    @property
    def of_rows(self) -> Mapping[str, Any]:
        """``[B]``, ``[B + 1]`` or ``[B, W]`` each, by name: what an engine declares."""
        ...


@dataclass(frozen=True)
class LayerContext:
    """All that a layer is given besides its parameters and the residual stream.

    Attributes:
        config: constants, and sizes of the whole model.
        kind: what this layer is.
        attend: attention. It receives raw projections, because GPU kernels fuse the norm, the
            rotation and the page write.
        axis: mesh axis of tensor parallelism, inside ``shard_map``; None without.
        kernels: which kernels compute the layer.
        tokens: what rows and tokens bring; None where whole sequences pass (`forward`).
        rows: int32 ``[B]``, the rows of ``[T, E]`` whose output is wanted, and which `attend`
            returns; None is all of them. Keys and values are computed of all in any case.
        index: of the layer; None where layers of a kind share a trace.
        tap: is told ``"attention"``, what `o_proj` reads, and ``"mlp"``, what `down_proj` reads; of
            a layer with experts ``"router"``, what the router reads, one row a token, and in the
            place of the latter ``"experts"``, int32 ``[X]``: tokens through each.
    """

    config: ModelConfig
    kind: LayerKind
    attend: Attend
    axis: TensorAxis | None = None
    kernels: Kernels = XLA
    tokens: LayerTokens | None = None
    rows: Int32[Array, " B"] | None = None
    index: int | None = None
    tap: Tap | None = None


class Parts(NamedTuple):
    """Tokens on their way through the layers, mostly all in one part.

    Attributes:
        residuals: the residual stream of each part.
        rotations: each part's, one for each of `Architecture.rotations`.
        tokens: what each part brings (`LayerTokens`), or None.
    """

    residuals: Sequence[ResidualStream]
    rotations: Sequence[Sequence[Rotation]]
    tokens: Sequence[Any]


@runtime_checkable
class LayerStep(Protocol):
    """One layer on all parts of the tokens."""

    def __call__(
        self,
        layer: Params,
        pages: Any,
        residuals: Sequence[ResidualStream],
        rotations: Sequence[Rotation],
        tokens: Sequence[Any],
        rows: Int32[Array, " B"] | None,
        /,
    ) -> tuple[Any, Sequence[ResidualStream]]:
        """The pages with this layer's keys and values, and the stream behind it."""
        ...
