"""What each kind of step is on the stages of a pipeline: a new kind is an entry of `STEP_PARTS`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxinfer.serving.programs.kinds.decode import DecodeKind
from jaxinfer.serving.programs.kinds.prefill import PrefillKind
from jaxinfer.serving.programs.pipeline.stage_step import stage_decode_step, stage_prefill_step


@dataclass(frozen=True, kw_only=True)
class StepPart:
    """A stage's part of a kind of step.

    Attributes:
        run: as `stage_step.stage_prefill_step`.
        num_outputs: arrays that it returns on the last stage beside the pages.
        num_tokens: rows of the residual stream in a bucket.
        fed_slots: of a batch, the slots whose newest tokens the step reads.
        sampled_slots: of a batch, the slots whose newest tokens its sampler writes.
    """

    run: Callable[..., Any]
    num_outputs: int
    num_tokens: Callable[[Any], int]
    fed_slots: Callable[[Any], np.ndarray]
    sampled_slots: Callable[[Any], np.ndarray]


def _decoded_slots(batch: Any) -> np.ndarray:
    return batch.slots[batch.context_lens > 0]


STEP_PARTS: dict[type, StepPart] = {
    DecodeKind.key_type: StepPart(
        run=stage_decode_step,
        num_outputs=2,
        num_tokens=lambda shape: shape.rows,
        fed_slots=_decoded_slots,
        sampled_slots=_decoded_slots,
    ),
    PrefillKind.key_type: StepPart(
        run=stage_prefill_step,
        num_outputs=3,
        num_tokens=lambda shape: shape.tokens,
        fed_slots=lambda batch: -1 - batch.token_ids[batch.token_ids < 0],
        sampled_slots=lambda batch: batch.slots,  # where nothing is sampled, the padding slot
    ),
}
"""By the class of the kind's keys."""
