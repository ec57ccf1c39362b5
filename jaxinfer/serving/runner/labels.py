"""The labels of rows: token ids whose log-probabilities are reported whatever is drawn."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.requests.request import Request
from jaxinfer.serving.runner.batch import Batch
from jaxinfer.serving.scheduler.schedule import ScheduledRow


def with_labels(
    batch: Batch, into: np.ndarray, special: np.ndarray, rows: Sequence[ScheduledRow]
) -> Batch:
    """The batch with what mode "measured" takes more; `into` and `special` are not used."""
    labels = labels_of((row.request for row in rows), batch.shape.rows)
    return dataclasses.replace(batch, labels=(labels,))


def labels_of(requests: Iterable[Request], count: int) -> np.ndarray:
    """Int32 ``[count, MAX_LABELS]``, each request's `logprob_token_ids`, padded with 0."""
    labels = np.zeros((count, MAX_LABELS), np.int32)
    for i, request in enumerate(requests):
        own = request.params.logprob_token_ids or ()
        labels[i, : len(own)] = own
    return labels
