"""Packs steps that feed prompts: chunks, forks, and tokens between them."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.runner.batch import Batch, pack
from jaxinfer.serving.runner.readouts.registry import READOUTS
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.step_rows import StepRows

ChooseMode = Callable[[int], SamplerMode]
"""From a number of rows, of a batch or its bucket, to the mode of their sampler."""


def pack_prefill(
    schedule: Schedule, step: StepRows, buckets: Buckets, choose_mode: ChooseMode
) -> Batch:
    """A batch of prompts, chunks and tokens between them, but for its scalars of sampling.

    Raises:
        ValueError: the step fits no bucket.
    """
    rows = schedule.rows
    wanted = [each for each in READOUTS if any(map(each.wants, rows))]
    all_tokens = any(each.needs_all_tokens for each in wanted)
    total = sum(row.num_fed for row in rows)
    shape = buckets.prefill_shape(total, len(rows), all_tokens=all_tokens)
    packed, mode = pack(shape, step), choose_mode(shape.rows)
    readouts = {each: each.pack(rows, shape.tokens) for each in wanted}
    draw: ProgramKey | None = SamplerKey(shape.rows, mode) if buckets.generates else None
    return Batch(shape, packed, mode, shape, draw, readouts=readouts)


def read_tables(rows: Sequence[ScheduledRow], slots: np.ndarray) -> np.ndarray:
    """Slots int32 ``[n]`` of the tables that rows read: forks read the row's that they follow.

    A fork's own last block is filled after the step.
    """
    leaders = [i if row.num_fed else 0 for i, row in enumerate(rows)]
    return slots[np.maximum.accumulate(leaders)]
