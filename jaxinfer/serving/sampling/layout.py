"""The sampler's inputs, as host and device agree on them: columns and arrays of each row."""

from enum import IntEnum, IntFlag
from typing import Any, Literal, NamedTuple

from jaxinfer.sampling_params import SamplingMode

SamplerMode = Literal["temperature", "truncate", "mixed", "full", "measured"]
"""A sampler's mode: one for all of its rows, or "mixed": "full" for a few of them, without
`top_k` and `top_p`, and "temperature" for the others."""

WITH_SLOTS: tuple[SamplerMode, ...] = ("full", "mixed", "measured")
"""Modes whose programs take `SlotState`."""

AHEAD: tuple[SamplerMode, ...] = ("temperature", "truncate", "mixed", "full")
"""Modes whose programs are compiled before the first request; others are at their first use."""

MODES: tuple[SamplingMode, ...] = ("temperature", "truncate", "full", "measured")
"""Sampling modes from cheapest to most expensive; each also serves rows of the modes before it."""

EDIT_WIDTH = 640
"""Most logit edits of a row: biases, stop tokens banned by min_tokens, and bad words."""

ALWAYS = 2**31 - 1
"""The end position of an edit that applies forever."""

IN_PROMPT, IN_OUTPUT = 1, 2
"""Increments of a token's count: once for the prompt, and for each time it is generated."""


class Column(IntEnum):
    """Columns of `SamplingArrays.scalars`; floats are stored by their bits."""

    TEMPERATURE = 0
    TOP_K = 1
    TOP_P = 2
    MIN_P = 3
    SEED_LOW = 4
    SEED_HIGH = 5
    POSITION = 6
    REPETITION_PENALTY = 7
    PRESENCE_PENALTY = 8
    FREQUENCY_PENALTY = 9
    PROMPT_LENGTH = 10
    NEEDS = 11


class Need(IntFlag):
    """The parts of its slot's state that a row's sampling reads; bits of `Column.NEEDS`."""

    EDITS = 1
    HISTORY = 2


class LogitEdits(NamedTuple):
    """Changes of logits that don't depend on generated tokens; one row a slot, or a batch row.

    Attributes:
        ids: int32 `[rows, EDIT_WIDTH]` tokens whose logits get `values` added; -1 is ignored.
        values: float32 `[rows, EDIT_WIDTH]`; minus infinity bans.
        until: int32 `[rows, EDIT_WIDTH]`; an edit applies to tokens at positions below this one.
        allowed: int32 `[rows, ceil(V / 32)]`, bit `t % 32` of word `t // 32` says that token t may
            be chosen.
    """

    ids: Any
    values: Any
    until: Any
    allowed: Any


class SlotState(NamedTuple):
    """The state that mode "full" keeps on the device for each slot, so that steps don't upload it.

    Attributes:
        token_counts: int32 `[slots, V]`, for each token `IN_PROMPT` if the prompt has it, plus
            `IN_OUTPUT` for each time that it was generated.
        edits: of each slot.
    """

    token_counts: Any
    edits: LogitEdits


class SamplingArrays(NamedTuple):
    """The sampling parameters of a batch's rows; NumPy on the host, JAX arrays in a step.

    Attributes:
        scalars: int32 `[B, len(Column)]`; POSITION is the absolute position of the token to draw.
        token_counts: int32 `[B, V]` as in `SlotState`, read where the row needs `Need.HISTORY`;
            None unless the mode is "full".
        edits: of each row, read where it needs `Need.EDITS`; None unless the mode is "full".
        masks: int32 `[B, ceil(V / 32)]` as `LogitEdits.allowed`, read in modes other than "full"
            where the row needs `Need.EDITS`, and has no other edits. None if no row does.
        special: int32 `[K]`, indices of the rows that mode "mixed" samples in full, padded with B;
            not read in other modes.
    """

    scalars: Any
    token_counts: Any = None
    edits: LogitEdits | None = None
    masks: Any = None
    special: Any = None


def num_special_rows(rows: int) -> int:
    """K, the most rows of a batch that mode "mixed" samples in full."""
    return max(8, rows // 8)
