"""The datum that tells the layers which adapter each token has."""

import numpy as np

from jaxinfer.serving.slots.step_data import Datum
from jaxinfer.serving.slots.step_rows import StepRows


def _slots(step: StepRows) -> np.ndarray:
    """The slot of each token's adapter."""
    of_rows = np.array([row.request.adapter_slot for row in step.rows], np.int32)
    return of_rows[step.row_of_token]


def _are_adapted(step: StepRows) -> bool:
    return any(row.request.adapter_slot >= 0 for row in step.rows)


SLOT_OF_TOKEN = Datum("adapter", "token", _slots, padding=-1, is_needed=_are_adapted)
"""The slot of each token's adapter; -1 for tokens without one, and for padding."""
