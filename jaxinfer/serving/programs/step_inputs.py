"""What a step reads out of its packed vector."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.serving.sampling.layout import SamplingArrays

_NOT_SAMPLED = SamplingArrays(None)


class StepInputs(NamedTuple):
    """What the rows and tokens of a step bring: T packed tokens of B rows; None where it has none.

    A packed prefill brings all but `num_tokens` and `shared`. A decoding batch, of one token of
    each row, brings the row's arrays, and the step derives the tokens'.

    Attributes:
        token_ids: ``[T]`` ids; in a packed batch ``-1 - slot`` where the id is in the device's
            last_tokens[slot].
        positions: ``[T]`` absolute positions.
        slot_mapping: ``[T]`` ``block * S + offset`` where keys and values go; 0 for padding.
        cu_seqlens: ``[B + 1]`` offsets of the rows in the tokens; ignored when decoding.
        context_lens: ``[B]`` keys of each row up to the last of these tokens; 0 for padding. A row
            that brings no token is a fork, which attends with the last token of the row before it.
        slots: ``[B]`` where in last_tokens a sampled token goes, and a decoding row's token to feed
            is; max_num_seqs for padding rows and rows that do not sample: the padding slot. Where a
            row of a multi-step decode has all its tokens, an index beyond all.
        num_tokens: ``[B]`` tokens of the step or multi-step decode that the host will keep of the
            row; from the multi-step decode's step of that number on, the row is as good as padding.
        block_tables: ``[B, W]`` page ids.
        shared: which decoding rows begin with the same pages; None where that is not looked for.
        sampling: how each row is sampled; none of its arrays where no row is.
        of_tokens: ``[T]`` each, by name: what `Datum` declares beyond these.
        of_rows: ``[B]``, ``[B + 1]`` or ``[B, W]`` each, by name: what `Datum` declares.
    """

    token_ids: Any = None
    positions: Any = None
    slot_mapping: Any = None
    cu_seqlens: Any = None
    context_lens: Any = None
    slots: Any = None
    num_tokens: Any = None
    block_tables: Any = None
    shared: SharedPrefixes | None = None
    sampling: SamplingArrays = _NOT_SAMPLED
    of_tokens: Mapping[str, Any] = {}
    of_rows: Mapping[str, Any] = {}

    def for_layers(self) -> "StepInputs":
        """Without what only the sampler and the steps of a multi-step decode read."""
        return self._replace(slots=None, num_tokens=None, sampling=_NOT_SAMPLED)
