"""Packs steps that feed prompts: chunks, forks, tokens between them, and proposed tokens."""

from collections.abc import Callable, Sequence

import numpy as np

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.sampler import SamplerKey
from jaxinfer.serving.programs.verify.verify_kind import VerifyKey
from jaxinfer.serving.programs.verify.verify_step import VerifyArrays
from jaxinfer.serving.runner.batch import Batch, pack
from jaxinfer.serving.runner.readouts.registry import READOUTS
from jaxinfer.serving.sampling.layout import WITH_SLOTS, SamplerMode
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow
from jaxinfer.serving.slots.step_rows import StepRows

ChooseMode = Callable[[int], SamplerMode]
"""From a number of rows, of a batch or its bucket, to the mode of their sampler."""


def pack_prefill(
    schedule: Schedule, step: StepRows, buckets: Buckets, choose_mode: ChooseMode
) -> Batch:
    """A batch of prompts, chunks and tokens between them, but for its scalars of sampling.

    Args:
        schedule: from the scheduler.
        step: its rows, with the tables that they read.
        buckets: the engine's.
        choose_mode: of its sampler.

    Raises:
        ValueError: the step fits no bucket, or verifies tokens that its sampler can't.
    """
    rows = schedule.rows
    wanted = [each for each in READOUTS if any(map(each.wants, rows))]
    verifies = schedule.num_proposed > 0
    all_tokens = verifies or any(each.needs_all_tokens for each in wanted)
    total = sum(row.num_fed for row in rows)
    shape = buckets.prefill_shape(total, len(rows), all_tokens=all_tokens)
    packed, mode = pack(shape, step), choose_mode(shape.rows)
    readouts = {each: each.pack(rows, shape.tokens) for each in wanted}
    draw: ProgramKey | None = SamplerKey(shape.rows, mode) if buckets.generates else None
    verify = None
    if verifies:
        verify = _verified(rows, shape.rows, schedule.num_proposed)
        draw = _verify_key(shape.tokens, verify, mode, schedule)
    return Batch(shape, packed, mode, shape, draw, readouts=readouts, verify=verify)


def first_sampled(rows: Sequence[ScheduledRow], ends: Sequence[int]) -> list[int]:
    """Where each row that ends at `ends` samples first: before its proposed tokens."""
    return [end - len(row.proposed_token_ids) for row, end in zip(rows, ends, strict=True)]


def read_tables(rows: Sequence[ScheduledRow], slots: np.ndarray) -> np.ndarray:
    """Slots int32 ``[n]`` of the tables that rows read: forks read the row's that they follow.

    A fork's own last block is filled after the step.
    """
    leaders = [i if row.num_fed else 0 for i, row in enumerate(rows)]
    return slots[np.maximum.accumulate(leaders)]


def _verify_key(
    num_tokens: int, verify: VerifyArrays, mode: SamplerMode, schedule: Schedule
) -> VerifyKey:
    if mode in WITH_SLOTS or schedule.host_dependent:
        raise ValueError(
            "tokens were proposed in a step with logit edits, penalties or log-probabilities "
            "of likeliest tokens, which are sampled one at a time: propose none"
        )
    num_rows, num_positions = verify.fed.shape
    return VerifyKey(num_tokens, num_rows, num_positions, mode)


def _verified(rows: Sequence[ScheduledRow], num_rows: int, num_proposed: int) -> VerifyArrays:
    """Where rows are sampled, at up to a power of two of positions."""
    ends = np.zeros(num_rows, np.int32)
    ends[: len(rows)] = np.cumsum([row.num_fed for row in rows]) - 1
    fed = np.full((num_rows, 1 << num_proposed.bit_length()), -1, np.int32)
    for i, row in enumerate(rows):
        count = len(row.proposed_token_ids)
        if count:
            fed[i, : count + 1] = np.frombuffer(row.packed_tokens(), np.int32)[-count - 1 :]
    return VerifyArrays(ends, fed)
