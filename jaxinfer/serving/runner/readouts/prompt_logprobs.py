"""The log-probabilities of a prompt's tokens, chunk by chunk."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKey
from jaxinfer.serving.programs.resident import StepOutputs
from jaxinfer.serving.requests.result import PROMPT_LOGPROBS, TokenScores, unpack_scores
from jaxinfer.serving.requests.scores.scored_range import is_scored_plainly
from jaxinfer.serving.runner.readouts.readout import Readout
from jaxinfer.serving.scheduler.schedule import ScheduledRow


class PromptLogprobs(Readout):
    """A row's value is the `TokenScores` ``[num_fed]`` of its tokens as predictors of the next."""

    name = PROMPT_LOGPROBS
    needs_all_tokens = True

    def wants(self, row: ScheduledRow) -> bool:
        """True for rows that feed a prompt token followed by another prompt token."""
        request = row.request
        is_scored = bool(request.scored) and is_scored_plainly(request.params)
        return is_scored and row.start < request.num_prompt_tokens - 1

    def pack(self, rows: Sequence[ScheduledRow], num_tokens: int) -> np.ndarray:
        """Int32 ``[T]``, the prompt token that follows each packed one, in rows that want it."""
        targets = np.zeros(num_tokens, np.int32)
        for row, first in zip(rows, _firsts(rows), strict=True):
            if self.wants(row):
                stop = row.start + row.num_fed
                following = row.request.prompt_token_ids[row.start + 1 : stop + 1]
                targets[first : first + len(following)] = following
        return targets

    def launch(
        self,
        head: Any,
        step: StepOutputs,
        packed: jax.Array | None,
        program: Callable[[ProgramKey], jax.stages.Compiled],
    ) -> jax.Array:
        """Int32 ``[T, columns]``, as `unpack_scores` reads them."""
        assert packed is not None
        return program(PromptLogprobsKey(len(packed)))(head, step.residual, packed)

    def unpack(self, fetched: np.ndarray, rows: Sequence[ScheduledRow]) -> list[TokenScores | None]:
        """Views of the rows' scores."""
        return [
            unpack_scores(fetched[first : first + row.num_fed]) if self.wants(row) else None
            for row, first in zip(rows, _firsts(rows), strict=True)
        ]


def _firsts(rows: Sequence[ScheduledRow]) -> list[int]:
    """Each row's first index in the packed tokens."""
    return list(itertools.accumulate((row.num_fed for row in rows[:-1]), initial=0))
