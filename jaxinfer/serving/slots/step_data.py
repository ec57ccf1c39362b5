"""The table of a step's inputs, one line for each array that rows and tokens bring to the device.

Sizes of packed vectors, where each array lies, padding, packing, warm-up and the cut of a long
prefill all follow from these lines.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import numpy as np

from jaxinfer.serving.requests.request import IN_FLIGHT_TOKEN
from jaxinfer.serving.slots.step_rows import StepRows

Kind = Literal["token", "row", "row+1", "table"]
"""What there is one of a datum for: T tokens, B rows, B + 1 ends of rows, or B rows of W blocks."""


class Padding(Enum):
    """Padding that is not the same number in every step; `Datum.padding` is a number otherwise."""

    SLOT = "the padding slot"
    LAST = "the last value that is not padding"


@dataclass(frozen=True)
class Datum:
    """One array of a step's inputs.

    Attributes:
        name: an attribute of `StepInputs`, or else the key in `of_tokens` or `of_rows` there.
        kind: says its shape: ``[T]``, ``[B]``, ``[B + 1]`` or ``[B, W]``. A decode step has one
            token of each row.
        values: fills it on the host: from n rows an array of what is not padding, ``[N]``,
            ``[n]``, ``[n + 1]`` or ``[n, up to W]``. Runs in every step, so without a loop over
            tokens. In a shape's `extra`, a function of a module: shapes are pickled for the
            processes that trace.
        padding: the value of all other entries, rows and tokens of padding.
        dtype: of 4 bytes, since all arrays travel in one int32 vector.
        only: the kind of step that takes it; None for both. The steps of a multi-step decode all
            get what was packed for the first.
        is_needed: in a shape's `extra`, whether these rows need it; a step whose rows don't is of a
            shape without. None is always.

    Raises:
        ValueError: the kind or the dtype is not one of these.
    """

    name: str
    kind: Kind
    values: Callable[[StepRows], np.ndarray] = field(compare=False, repr=False)
    padding: int | float | Padding = 0
    dtype: Literal["int32", "float32"] = "int32"
    only: Literal["prefill", "decode"] | None = None
    is_needed: Callable[[StepRows], bool] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in ("token", "row", "row+1", "table"):
            raise ValueError(f"datum {self.name!r}: kind {self.kind!r} is no token, row or table")
        if self.dtype not in ("int32", "float32"):
            raise ValueError(f"datum {self.name!r}: dtype {self.dtype!r}; take int32 or float32")

    def write(self, into: np.ndarray, step: StepRows) -> None:
        """Fill its array, in which constant padding is already, from a step's rows."""
        values = self.values(step)
        count = len(values)
        if self.kind == "table":
            into[:count, : values.shape[1]] = values
        else:
            into[:count] = values
        if self.padding is Padding.SLOT:
            into[count:] = step.padding_slot
        elif self.padding is Padding.LAST:
            into[count:] = values[-1]


def _token_ids(step: StepRows) -> np.ndarray:
    """The tokens that are fed; those in flight as the slots that have them."""
    token_ids = np.frombuffer(b"".join(row.packed_tokens() for row in step.rows), np.int32)
    in_flight = np.flatnonzero(token_ids == IN_FLIGHT_TOKEN)
    if not len(in_flight):
        return token_ids
    token_ids = token_ids.copy()
    token_ids[in_flight] = -1 - step.slots[step.row_of_token[in_flight]]
    return token_ids


def _slot_mapping(step: StepRows) -> np.ndarray:
    """Where in the pages keys and values of each token go."""
    S, positions = step.block_size, step.positions
    ordinals = positions // S
    # One index instead of two: three times as fast for the tokens of a large prefill.
    blocks = step.tables.ravel().take(step.row_of_token * step.tables.shape[1] + ordinals)
    return positions + (blocks - ordinals) * S


def _num_tokens(step: StepRows) -> np.ndarray:
    """How many tokens each row gains."""
    return np.array([row.num_reserved for row in step.rows], np.int32)


STEP_DATA = (
    Datum("token_ids", "token", _token_ids, only="prefill"),
    Datum("positions", "token", lambda step: step.positions, only="prefill"),
    Datum("slot_mapping", "token", _slot_mapping, only="prefill"),
    Datum("cu_seqlens", "row+1", lambda step: step.cu_seqlens, Padding.LAST, only="prefill"),
    Datum("context_lens", "row", lambda step: step.context),
    Datum("slots", "row", lambda step: step.sample_slots, Padding.SLOT),
    Datum("num_tokens", "row", _num_tokens, only="decode"),
    Datum("block_tables", "table", lambda step: step.tables),
)
"""What every engine's steps take, in the order of the packed vector."""


def data_of(
    step: Literal["prefill", "decode"], data: Iterable[Datum] = STEP_DATA
) -> tuple[Datum, ...]:
    """The data that one kind of step takes."""
    return tuple(datum for datum in data if datum.only in (None, step))
