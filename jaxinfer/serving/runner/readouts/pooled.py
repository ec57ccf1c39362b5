"""The embedding of a text: the final hidden state of its last token."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.resident import StepOutputs
from jaxinfer.serving.requests.result import POOLED
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.scheduler.schedule import ScheduledRow


class Pooled(Readout):
    """A row's value is the float32 vector ``[E]`` of its prompt's last token, after the norm."""

    name = POOLED

    def wants(self, row: ScheduledRow) -> bool:
        """True for the last chunk of a prompt whose request is `pooled`."""
        return row.request.new.pooled and row.ends_prefill_only

    def launch(
        self,
        head: Any,
        step: StepOutputs,
        packed: jax.Array | None,
        program: Callable[[ProgramKey], jax.stages.Compiled],
    ) -> jax.Array:
        """The hidden states that the step has computed, ``[B, E]``, in the model's dtype."""
        assert step.hidden is not None
        return step.hidden

    def unpack(self, fetched: np.ndarray, rows: Sequence[ScheduledRow]) -> list[np.ndarray | None]:
        """Each row's own vector."""
        return [
            fetched[i].astype(np.float32) if self.wants(row) else None for i, row in enumerate(rows)
        ]
