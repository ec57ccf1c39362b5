"""What steps of some sampler modes have more: places of special rows, or labels."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.scheduler.schedule import ScheduledRow


def fill_up(
    num_rows: int, into: np.ndarray, special: np.ndarray, rows: Sequence[ScheduledRow]
) -> tuple[np.ndarray, ...]:
    """Fill `SamplingArrays.special` with the places of special rows."""
    into[:] = num_rows
    into[: len(special)] = special
    return ()


def labels_of(
    num_rows: int, into: np.ndarray, special: np.ndarray, rows: Sequence[ScheduledRow]
) -> tuple[np.ndarray, ...]:
    """Int32 ``[num_rows, MAX_LABELS]``, each request's `logprob_token_ids`, padded with 0."""
    labels = np.zeros((num_rows, MAX_LABELS), np.int32)
    for own, row in zip(labels, rows, strict=False):
        write_labels(own, row)
    return (labels,)


def write_labels(into: np.ndarray, row: ScheduledRow) -> None:
    """Write a row's labels to int32 ``[..., MAX_LABELS]``, which is 0 elsewhere."""
    labels = row.request.params.logprob_token_ids or ()
    into[..., : len(labels)] = labels


MORE_INPUTS: Mapping[SamplerMode, Callable[..., tuple[np.ndarray, ...]]] = {
    "mixed": fill_up,
    "measured": labels_of,
}
"""By mode, from a bucket's rows, `SamplingArrays.special`, indices of special rows and the rows of
the step, what its sampler takes more."""
