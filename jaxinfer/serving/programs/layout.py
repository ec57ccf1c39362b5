"""Where each array of a batch lies in the one int32 vector that is uploaded for it.

Host and device read the same layout: `split` returns views, so the host fills a NumPy vector
through them, and the step takes its arrays out of the traced vector with the same call.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes

_ALIGNMENT = 64  # int32 words: 256 bytes


class PrefillFields(NamedTuple):
    """Arrays of a packed ragged batch: T tokens of B rows.

    Attributes:
        token_ids: ``[T]`` ids, or ``-1 - slot`` where the id is in the device's last_tokens[slot].
        positions: ``[T]`` absolute positions.
        slot_mapping: ``[T]`` ``block * S + offset`` where keys and values go; 0 for padding.
        cu_seqlens: ``[B + 1]`` offsets of the rows in the tokens.
        context_lens: ``[B]`` tokens of each row's context, these included; 0 for padding rows.
        sample_slots: ``[B]`` slot whose last token is sampled here; max_num_seqs for rows that do
            not sample and for padding rows (a slot that nobody reads).
        block_tables: ``[B, W]``.
    """

    token_ids: Any
    positions: Any
    slot_mapping: Any
    cu_seqlens: Any
    context_lens: Any
    sample_slots: Any
    block_tables: Any


class DecodeFields(NamedTuple):
    """Arrays of a decoding batch: one token of each of B rows.

    Attributes:
        context_lens: ``[B]`` tokens of the context, the one being fed included; 0 for padding.
        slots: ``[B]`` where in last_tokens the token to feed is, and the sampled one goes;
            max_num_seqs for padding rows.
        num_tokens: ``[B]`` tokens of the step or multi-step decode that the host will keep of the
            row; from the multi-step decode's step of that number on, the row is as good as padding.
        block_tables: ``[B, W]``.
        shared: which rows begin with the same blocks; None where nobody looks.
    """

    context_lens: Any
    slots: Any
    num_tokens: Any
    block_tables: Any
    shared: SharedPrefixes | None


@dataclass(frozen=True)
class PrefillShape:
    """Bucket of a prefill step.

    Attributes:
        tokens: T.
        rows: B.
        width: W, blocks of a block table.
        all_tokens: whether the last layer's output is wanted of every token, for log-probabilities
            of the prompt, and not of each row's last one only.
    """

    tokens: int
    rows: int
    width: int
    all_tokens: bool = False

    @property
    def size(self) -> int:
        """Length of the packed vector."""
        return _length(self._shapes())

    def split(self, packed: Any) -> PrefillFields:
        """The arrays inside a packed vector ``[size]`` (NumPy: writable views)."""
        return PrefillFields(*_split(packed, self._shapes()))

    def _shapes(self) -> list[tuple[int, ...]]:
        T, B, W = self.tokens, self.rows, self.width
        return [(T,), (T,), (T,), (B + 1,), (B,), (B,), (B, W)]


@dataclass(frozen=True)
class DecodeShape:
    """Bucket of a decode step.

    Attributes:
        rows: B.
        width: W, blocks of a block table.
        work_items: U, most work items of keys that rows share; 0 for kernels that look at each row
            alone.
    """

    rows: int
    width: int
    work_items: int = 0

    @property
    def size(self) -> int:
        """Length of the packed vector."""
        return _length(self._shapes())

    def split(self, packed: Any) -> DecodeFields:
        """The arrays inside a packed vector ``[size]`` (NumPy: writable views)."""
        context_lens, slots, num_tokens, block_tables, *shared = _split(packed, self._shapes())
        prefixes = SharedPrefixes(*shared) if shared else None
        return DecodeFields(context_lens, slots, num_tokens, block_tables, prefixes)

    def _shapes(self) -> list[tuple[int, ...]]:
        B, U = self.rows, self.work_items
        shapes: list[tuple[int, ...]] = [(B,), (B,), (B,), (B, self.width)]
        return [*shapes, (1,), (U, 4), (B, 4)] if U else shapes


def _split(packed: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    parts, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        parts.append(packed[start:stop].reshape(shape))
        start += _aligned(math.prod(shape))
    return parts


def _length(shapes: list[tuple[int, ...]]) -> int:
    return sum(_aligned(math.prod(shape)) for shape in shapes)


def _aligned(count: int) -> int:
    # XLA hands a kernel a slice of the vector where it lies, and Mosaic GPU kernels refuse operands
    # that do not begin at a multiple of 256 bytes.
    return -(-count // _ALIGNMENT) * _ALIGNMENT
