"""Host memory that the steps of a pipeline read their batches from, on every stage."""

import jax
import numpy as np

from jaxinfer.serving.programs.pipeline.stage_programs import PipelinePrograms
from jaxinfer.serving.programs.pipeline.staged_inputs import StagedBatch, TokenVersions
from jaxinfer.serving.runner.host_inputs import HostInputs

_BESIDE_STAGES = 3  # one that waits, one that is read, and one that is written


class StagedHostInputs:
    """`HostInputs` of every stage, with the tokens in flight that the first one feeds."""

    def __init__(self, programs: PipelinePrograms) -> None:
        stages = programs.stages
        in_turn = len(stages) + _BESIDE_STAGES
        self._of_stages = [HostInputs(each.on_host(()).sharding, in_turn) for each in stages]
        first = stages[0].whole(()).sharding
        self._versions = TokenVersions(first, programs.num_slots, len(stages))

    def write(self, packed: np.ndarray) -> StagedBatch:
        """As `HostInputs.write`, for each stage."""
        arrays = [each.write(packed) for each in self._of_stages]
        return StagedBatch(arrays, packed, self._versions)

    def read_by(self, result: jax.Array) -> None:
        """Register a result of the last stage."""
        for each in self._of_stages:
            each.read_by(result)

    def clear(self) -> None:
        """Forget all arrays, after a step that raised."""
        for each in self._of_stages:
            each.clear()
        self._versions.clear()
