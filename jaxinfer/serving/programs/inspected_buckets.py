"""The shapes of an engine whose activations are read or changed."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxinfer.capture import CapturedValue
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.slots.step_data import Datum


@dataclass(frozen=True)
class InspectedBuckets(Buckets):
    """The same shapes with further data of rows and tokens.

    Attributes:
        extra: these data.
        captured: what is read out of the pages; None reads nothing.
    """

    extra: tuple[Datum, ...] = ()
    captured: CapturedValue | None = None

    def sampled_decode_shape(self, rows: int, width: int) -> DecodeShape:
        """As of `Buckets`."""
        return self._declaring(super().sampled_decode_shape(rows, width))

    def decode_shape(self, *args: Any, **options: Any) -> DecodeShape:
        """As of `Buckets`."""
        return self._declaring(super().decode_shape(*args, **options))

    def sharing_shape(self, *args: Any, **options: Any) -> DecodeShape | None:
        """As of `Buckets`."""
        shape = super().sharing_shape(*args, **options)
        return None if shape is None else self._declaring(shape)

    def prefill_shape(self, *args: Any, **options: Any) -> PrefillShape:
        """As of `Buckets`."""
        return self._declaring(super().prefill_shape(*args, **options))

    def prefill_shapes(self) -> list[PrefillShape]:
        """As of `Buckets`."""
        return [self._declaring(shape) for shape in super().prefill_shapes()]

    def decode_shapes(self) -> list[DecodeShape]:
        """As of `Buckets`."""
        return [self._declaring(shape) for shape in super().decode_shapes()]

    def sampled_decode_shapes(self) -> list[DecodeShape]:
        """As of `Buckets`."""
        return [self._declaring(shape) for shape in super().sampled_decode_shapes()]

    def _declaring[Shape: (DecodeShape, PrefillShape)](self, shape: Shape) -> Shape:
        """The shape with the further data."""
        return dataclasses.replace(shape, extra=self.extra)


def inspected(
    buckets: Buckets, *, extra: tuple[Datum, ...], captured: CapturedValue | None
) -> InspectedBuckets:
    """The buckets with further data; see `InspectedBuckets`."""
    own = {entry.name: getattr(buckets, entry.name) for entry in dataclasses.fields(buckets)}
    return InspectedBuckets(**own, extra=extra, captured=captured)
