"""Records of launched steps, whose tokens are on the way to the host or yet to be drawn."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import jax
import numpy as np

from jaxinfer.serving.programs.resident import StepOutputs
from jaxinfer.serving.requests.result import OK
from jaxinfer.serving.runner.batch import Batch
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


class UnsampledStep(NamedTuple):
    """A step whose forward pass was launched; its sampler may still have to be.

    Attributes:
        batch: the arrays that were uploaded for it.
    """

    schedule: Schedule
    batch: Batch
    outputs: StepOutputs


class InFlightStep(NamedTuple):
    """A step that was launched and not yet read.

    Attributes:
        sampled: int32 ``[B, columns]``, ``[positions, B, columns]`` of a multi-step decode, or
            ``[steps, positions, B, columns]`` of steps with drafts, in pinned host memory once the
            device is done. Where nothing samples, the last array of the step.
        samples: whether tokens were sampled.
        mode: of the sampler.
    """

    sampled: jax.Array
    readouts: Mapping[Readout, jax.Array]
    rows: Sequence[ScheduledRow]
    samples: bool = True
    mode: SamplerMode = "temperature"


def unsampled(step: InFlightStep) -> np.ndarray:
    """Wait for a step that sampled nothing; int32 ``[rows, 2]`` in the place of its tokens.

    Raises:
        Exception: the device's own, of that step.
    """
    step.sampled.block_until_ready()
    return np.full((len(step.rows), 2), OK, np.int32)


class Launched(NamedTuple):
    """A step that was submitted to the launching thread."""

    schedule: Schedule
    result: Future[InFlightStep | UnsampledStep]
