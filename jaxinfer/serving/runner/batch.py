"""One step as int32 arrays, and the programs that it consists of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.slots.slot_updates import CountsUpdate, DraftWrite, EditsUpdate
from jaxinfer.serving.slots.step_rows import StepRows


@dataclass(frozen=True)
class Batch:
    """One step, ready for its programs.

    Attributes:
        shape: the bucket that the arrays fill.
        packed: int32 ``[shape.size]``, laid out by `shape`.
        mode: what the sampler must be able to do.
        forward: the program that feeds it.
        draw: the program that samples then; None if `forward` does, or nothing samples.
        edits: what slots must be told before.
        counts: known tokens to count in slots before.
        readouts: what rows want beside tokens, each with the array that it reads on the device.
        draft_writes: tokens to tell the device of before, for drafts.
        labels: of rows of mode "measured": of `MORE_INPUTS`.
    """

    shape: PrefillShape | DecodeShape
    packed: np.ndarray
    mode: SamplerMode
    forward: ProgramKey
    draw: ProgramKey | None = None
    edits: Sequence[EditsUpdate] = ()
    counts: Sequence[CountsUpdate] = ()
    readouts: Mapping[Readout, np.ndarray | None] = field(default_factory=dict)
    draft_writes: Sequence[DraftWrite] = ()
    labels: Sequence[np.ndarray] = ()

    @property
    def programs(self) -> list[ProgramKey]:
        """The programs that the step consists of."""
        return [self.forward] if self.draw is None else [self.forward, self.draw]


def pack(shape: PrefillShape | DecodeShape, step: StepRows) -> np.ndarray:
    """The packed vector int32 ``[shape.size]`` of a step, but for its scalars of sampling."""
    packed = shape.blank()
    for datum, array in zip(shape.data, shape.arrays(packed), strict=False):  # others come after
        datum.write(array, step)
    return packed
