"""Records of launched steps, whose tokens are on the way to the host or yet to be drawn."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import jax

from jaxinfer.serving.runner.batch import Batch
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.scheduler.schedule import Schedule, ScheduledRow


class UnsampledStep(NamedTuple):
    """A step whose forward pass was launched and whose tokens `Runner.sample` draws.

    Attributes:
        schedule: the rows that were launched.
        batch: the arrays that were uploaded for it.
        hidden: final hidden states ``[B, E]`` on the device.
        rows: `SampledRows.joined`.
        residual: the residual stream ``[T, E]`` of a step whose prompt tokens are scored, or none.
    """

    schedule: Schedule
    batch: Batch
    hidden: jax.Array
    rows: jax.Array
    residual: Sequence[jax.Array]


class InFlightStep(NamedTuple):
    """A step that was launched and not yet read.

    Attributes:
        sampled: int32 ``[B, columns]``, or ``[positions, B, columns]`` of a step that verifies or a
            multi-step decode, in pinned host memory once the device is done.
        readouts: on the device.
        rows: of the schedule.
        proposed: each row's proposed tokens, if some row had any.
    """

    sampled: jax.Array
    readouts: Mapping[Readout, jax.Array]
    rows: Sequence[ScheduledRow]
    proposed: Sequence[Sequence[int]] | None = None


class Launched(NamedTuple):
    """A step that was handed to the thread that launches.

    Attributes:
        schedule: its rows.
        result: what the launch returns or raises.
    """

    schedule: Schedule
    result: Future[InFlightStep | UnsampledStep]
