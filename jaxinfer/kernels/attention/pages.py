"""The arguments of every implementation of paged attention: pages, rows, and scoring."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax import Array
from jaxtyping import Int32


class Pages(NamedTuple):
    """The pages of one layer's cache: P pages of S tokens, K heads of D values each.

    Descriptions (`jax.ShapeDtypeStruct`) and partitions of such arrays have this form too.
    Functions that copy pages map over all leaves; each leaf has the pages as its first axis.

    Attributes:
        k: keys, ``[P, S, K, D]``.
        v: values, ``[P, S, K, D]``.
        k_scale: float32 ``[P, S, K]``, the scale of the keys of a token and head; None if keys are
            not quantized.
        v_scale: float32 ``[P, S, K]``, the scale of the values; None if they are not quantized.
    """

    k: Any
    v: Any
    k_scale: Any = None
    v_scale: Any = None


class PagedRows(NamedTuple):
    """B rows of packed queries, with the block tables of their keys.

    Attributes:
        context_lens: ``[B]`` keys of each row, this step's included; 0 marks a padding row.
        block_tables: ``[B, W]`` page ids of each row in order; entries past the context are not
            used.
        cu_seqlens_q: ``[B + 1]`` where each row begins in the queries; None while decoding, where
            row ``b`` is query ``b``.
    """

    context_lens: Int32[Array, " B"]
    block_tables: Int32[Array, "B W"]
    cu_seqlens_q: Int32[Array, " B1"] | None = None


class Scoring(NamedTuple):
    """The scale and the mask of the products of queries and keys; static.

    Attributes:
        scale: factor of the products (positive).
        window: a query sees only the last `window` positions up to its own; None shows all.
        causal: a query sees keys at its own position and before; False shows the whole context.
    """

    scale: float
    window: int | None = None
    causal: bool = True


@runtime_checkable
class Attend(Protocol):
    """The signature of a backend's ``paged_decode_attention`` and ``paged_prefill_attention``.

    A decode has one query a row, at position ``context_lens - 1``, and gives zeros for rows of
    context 0. Options beyond these are a backend's own: sizes that change its speed, and shared
    prefixes of rows. `op.paged_attention` documents the arguments, and the contents of unused
    places.
    """

    def __call__(
        self, q: Array, pages: Pages, rows: PagedRows, scoring: Scoring, **options: Any
    ) -> Array:
        """``[T, H, D]``, like the queries."""
        ...


@runtime_checkable
class PartialAttend(Protocol):
    """The signature of a backend's ``partial_decode_attention`` and ``partial_prefill_attention``.

    As `Attend`, over a part of each row's keys: `partial.partial_attention` documents it.
    """

    def __call__(
        self, q: Array, pages: Pages, rows: PagedRows, scoring: Scoring
    ) -> tuple[Array, Array]:
        """``[T, H, D]``, and base-2 logarithms of the sums, float32 ``[T, H]``."""
        ...


@runtime_checkable
class NormRopeWrite(Protocol):
    """The signature of a backend's ``norm_rope_write``; arguments as for `op.norm_rope_write`."""

    def __call__(
        self,
        heads: tuple[Array, ...],
        q_norm: Array | None,
        k_norm: Array | None,
        cos: Array,
        sin: Array,
        pages: Pages,
        slot_mapping: Array,
        *,
        eps: float,
    ) -> tuple[Array, Pages]:
        """The rotated queries, and the pages with this step's keys and values."""
        ...
