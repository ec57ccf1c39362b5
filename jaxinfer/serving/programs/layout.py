"""The layout of a batch: the place of each array in the one int32 vector that is uploaded.

Host and device read the same layout: `split` returns views, so the host fills a NumPy vector
through them, and the step takes its arrays out of the traced vector with the same call. The arrays
are declared in `slots/step_data.py`.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxinfer.kernels.attention.shared_prefix import SharedPrefixes
from jaxinfer.serving.programs.step_inputs import StepInputs
from jaxinfer.serving.sampling.layout import Column, SamplingArrays, num_special_rows
from jaxinfer.serving.slots.step_data import Datum, Padding, data_of

_ALIGNMENT = 64  # int32 words: 256 bytes
_DATA = {"prefill": data_of("prefill"), "decode": data_of("decode")}


class SampledRows(NamedTuple):
    """The sampler's inputs for B rows, beside their hidden states.

    Attributes:
        slots: int32 ``[B]``, index into last_tokens of each sampled token.
        fed: int32 ``[B]``, each row's last token before it.
    """

    slots: Any
    fed: Any
    sampling: SamplingArrays

    def joined(self) -> Any:
        """All of it as one int32 vector, which costs a step one kernel."""
        arrays = (self.slots, self.fed, self.sampling.scalars.ravel(), self.sampling.special)
        return jnp.concatenate(arrays)

    @staticmethod
    def split(joined: Any, rows: int) -> "SampledRows":
        """The inverse of `joined`, for this number of rows."""
        shapes = ((rows,), (rows,), *_sampling_shapes(rows))
        ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
        starts = [0, *ends[:-1]]
        slots, fed, scalars, special = (
            joined[start:end].reshape(shape)
            for start, end, shape in zip(starts, ends, shapes, strict=True)
        )
        return SampledRows(slots, fed, SamplingArrays(scalars, special=special))

    @staticmethod
    def size(rows: int) -> int:
        """Length of `joined`."""
        return 2 * rows + sum(math.prod(shape) for shape in _sampling_shapes(rows))


def _sampling_shapes(rows: int) -> tuple[tuple[int, ...], ...]:
    """Shapes of a batch's `SamplingArrays.scalars` and `special`."""
    return (rows, len(Column)), (num_special_rows(rows),)


class StepShape(ABC):
    """What the buckets of both kinds of steps have."""

    kind: ClassVar[Literal["prefill", "decode"]]
    extra: tuple[Datum, ...]

    @property
    def data(self) -> tuple[Datum, ...]:
        """All that is packed first, in that order."""
        return _DATA[self.kind] + data_of(self.kind, self.extra) if self.extra else _DATA[self.kind]

    @property
    def size(self) -> int:
        """Length of the packed vector."""
        return _places(self)[0]

    @abstractmethod
    def array_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all arrays in the vector: `data`, a decode's `shared`, then `sampling`'s."""

    def arrays(self, packed: Any) -> list[Any]:
        """The arrays inside a packed vector, as `array_shapes` has them (NumPy: views)."""
        return _arrays(packed, _places(self)[1])

    def split(self, packed: Any) -> StepInputs:
        """The arrays inside a packed vector ``[size]`` by name (NumPy: writable views)."""
        arrays = self.arrays(packed)
        named = _named(self.data, arrays)
        return named._replace(shared=self.shared(arrays), sampling=self.sampling(arrays))

    def shared(self, arrays: Sequence[Any]) -> SharedPrefixes | None:
        """The arrays of shared prefixes; None if they are not searched for."""
        return None

    def sampling(self, arrays: Sequence[Any]) -> SamplingArrays:
        """The last of the arrays: the rows' sampling parameters."""
        return SamplingArrays(arrays[-2], special=arrays[-1])

    def blank(self) -> np.ndarray:
        """A packed vector of padding alone, with zeros where padding differs between steps."""
        packed = np.zeros(self.size, np.int32)
        if self.extra:
            for datum, array in zip(self.data, self.arrays(packed), strict=False):
                if not isinstance(datum.padding, Padding):
                    array[...] = datum.padding
        return packed


@dataclass(frozen=True)
class PrefillShape(StepShape):
    """Bucket of a prefill step.

    Attributes:
        tokens: T.
        rows: B.
        width: W, blocks of a block table.
        all_tokens: whether the last layer's output is needed for every token, for log-probabilities
            of the prompt, and not only for each row's last one.
        extra: data of rows and tokens beyond `STEP_DATA`.
    """

    tokens: int
    rows: int
    width: int
    all_tokens: bool = False
    extra: tuple[Datum, ...] = ()
    kind: ClassVar = "prefill"

    def array_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all arrays in the vector."""
        shapes = _shapes(self.data, self.tokens, self.rows, self.width)
        return [*shapes, *_sampling_shapes(self.rows)]


@dataclass(frozen=True)
class DecodeShape(StepShape):
    """Bucket of a decode step.

    Attributes:
        rows: B.
        width: W, blocks of a block table.
        work_items: U, most work items of keys that rows share; 0 for kernels that treat each row
            separately.
        extra: data of rows and tokens beyond `STEP_DATA`.
    """

    rows: int
    width: int
    work_items: int = 0
    extra: tuple[Datum, ...] = ()
    kind: ClassVar = "decode"

    def shared(self, arrays: Sequence[Any]) -> SharedPrefixes | None:
        """The arrays of shared prefixes; None if they are not searched for."""
        return SharedPrefixes(*arrays[len(self.data) : -2]) if self.work_items else None

    def array_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of all arrays in the vector."""
        shapes = _shapes(self.data, self.rows, self.rows, self.width)
        U = self.work_items
        shared = [(1,), (U, 4), (self.rows, 4)] if U else []
        return [*shapes, *shared, *_sampling_shapes(self.rows)]


def _named(data: Sequence[Datum], arrays: Sequence[Any]) -> StepInputs:
    """Arrays as `StepInputs`, by the names of their data."""
    named: dict[str, Any] = {}
    of_tokens: dict[str, Any] = {}
    of_rows: dict[str, Any] = {}
    for datum, array in zip(data, arrays, strict=False):  # others come after
        if datum.name in StepInputs._fields:
            group = named
        else:
            group = of_tokens if datum.kind == "token" else of_rows
        if datum.name in group:
            raise ValueError(f"two data of a step are named {datum.name!r}; rename one")
        group[datum.name] = array
    return StepInputs(**named, of_tokens=of_tokens, of_rows=of_rows)


def _shapes(data: Sequence[Datum], T: int, B: int, W: int) -> list[tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token": (T,),
        "row": (B,),
        "row+1": (B + 1,),
        "table": (B, W),
    }
    return [shapes[datum.kind] for datum in data]


class _Place(NamedTuple):
    start: int
    stop: int
    shape: tuple[int, ...]
    is_float: bool


@functools.cache  # few shapes, and a step asks several times
def _places(shape: StepShape) -> tuple[int, list[_Place]]:
    """The length of the packed vector, and where each array lies in it."""
    places, start = [], 0
    for i, each in enumerate(shape.array_shapes()):
        is_float = i < len(shape.data) and shape.data[i].dtype == "float32"
        places.append(_Place(start, start + math.prod(each), each, is_float))
        start += _aligned(math.prod(each))
    return start, places


def _arrays(packed: Any, places: Sequence[_Place]) -> list[Any]:
    """Views of a packed vector at these places."""
    arrays = []
    for start, stop, shape, is_float in places:
        array = packed[start:stop].reshape(shape)
        arrays.append(_as_floats(array) if is_float else array)
    return arrays


def _as_floats(array: Any) -> Any:
    if isinstance(array, np.ndarray):
        return array.view(np.float32)
    return lax.bitcast_convert_type(array, np.float32)


def _aligned(count: int) -> int:
    # XLA hands a kernel a slice of the vector where it lies, and Mosaic GPU kernels refuse operands
    # that do not begin at a multiple of 256 bytes.
    return -(-count // _ALIGNMENT) * _ALIGNMENT
