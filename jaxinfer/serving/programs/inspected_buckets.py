"""The shapes of an engine whose activations are read or changed."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from jaxinfer.capture import CapturedValue
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.slots.step_data import Datum


@dataclass(frozen=True)
class InspectedBuckets(Buckets):
    """The shapes, and what is read.

    Attributes:
        captured: what is read out of the pages; None reads nothing.
    """

    captured: CapturedValue | None = None


def inspected(
    buckets: Buckets, *, extra: tuple[Datum, ...], captured: CapturedValue | None
) -> InspectedBuckets:
    """The buckets with further data of rows and tokens, and what is read."""
    own: dict[str, Any] = {
        entry.name: getattr(buckets, entry.name) for entry in dataclasses.fields(buckets)
    }
    own["extra"] = extra
    return InspectedBuckets(**own, captured=captured)
