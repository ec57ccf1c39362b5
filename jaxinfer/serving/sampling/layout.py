"""What host and device must agree on: the columns and arrays that describe a batch's sampling."""

from enum import IntEnum
from typing import Any, NamedTuple

from jaxinfer.sampling_params import SamplingMode

MODES: tuple[SamplingMode, ...] = ("greedy", "temperature", "truncate", "full")
"""From cheapest to dearest; each can serve what the ones before it can."""

EDIT_WIDTH = 640
"""Most logit edits of a row: biases, stop tokens banned by min_tokens, and bad words."""


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
    HISTORY_LENGTH = 11


class SamplingArrays(NamedTuple):
    """How each row of a batch is sampled; NumPy on the host, JAX arrays in a step.

    Attributes:
        scalars: int32 `[B, len(Column)]`; POSITION is the absolute position of the token to draw.
        history: int32 `[B, history_width]` prompt and output tokens of rows with penalties, or
            None unless the mode is "full"; what lies past HISTORY_LENGTH is ignored.
        edit_ids: int32 `[B, EDIT_WIDTH]` tokens whose logits get `edit_values` added; -1 is
            ignored. None unless the mode is "full".
        edit_values: float32 `[B, EDIT_WIDTH]`; minus infinity bans. None unless "full".
        allowed: int32 `[B, ceil(V / 32)]`, bit `t % 32` of word `t // 32` says that token t may be
            chosen. None unless the mode is "full".
    """

    scalars: Any
    history: Any = None
    edit_ids: Any = None
    edit_values: Any = None
    allowed: Any = None
