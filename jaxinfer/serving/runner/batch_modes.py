"""What batches of some sampler modes have more: special rows' places, or labels."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.batch import Batch
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.scheduler.schedule import ScheduledRow

Complete = Callable[[Batch, np.ndarray, np.ndarray, Sequence[ScheduledRow]], Batch]
"""From a batch, its `SamplingArrays.special`, indices of its special rows and its rows."""


def fill_up(
    batch: Batch, into: np.ndarray, special: np.ndarray, rows: Sequence[ScheduledRow]
) -> Batch:
    """Fill `SamplingArrays.special` with the places of special rows."""
    into[:] = batch.shape.rows
    into[: len(special)] = special
    return batch


def with_labels(
    batch: Batch, into: np.ndarray, special: np.ndarray, rows: Sequence[ScheduledRow]
) -> Batch:
    """Add the labels of the rows' requests: what the sampler takes more."""
    labels = labels_of((row.request for row in rows), batch.shape.rows)
    return dataclasses.replace(batch, labels=(labels,))


def labels_of(requests: Iterable[Request], count: int) -> np.ndarray:
    """Int32 ``[count, MAX_LABELS]``, each request's `logprob_token_ids`, padded with 0."""
    labels = np.zeros((count, MAX_LABELS), np.int32)
    for i, request in enumerate(requests):
        own = request.params.logprob_token_ids or ()
        labels[i, : len(own)] = own
    return labels


COMPLETE: Mapping[SamplerMode, Complete] = {"mixed": fill_up, "measured": with_labels}
"""What completes the batches of a mode."""
