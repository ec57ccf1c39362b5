"""Programs that score some of a prefill step's tokens with its hidden states, and measure them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.scored_tokens import NUM_GIVEN_COLUMNS, scored_tokens_step


@dataclass(frozen=True)
class ScoredTokensKey:
    """The key of a program that scores some of a prefill step's tokens."""

    tokens: int


class ScoredTokensKind(ProgramKind[ScoredTokensKey]):
    """Programs that score tokens, keyed by the number of tokens in a step.

    None is compiled before the first request: few engines ever need one.
    """

    key_type = ScoredTokensKey
    uses_pages = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[ScoredTokensKey]:
        """No keys: the programs are compiled at their first use."""
        return []

    def program(self, programs: Programs, key: ScoredTokensKey) -> Program:
        """The program of `scored_tokens_step`."""
        run = functools.partial(scored_tokens_step, context=programs.context)
        residual = programs.whole((key.tokens, programs.context.config.hidden_size), programs.dtype)
        arguments = (
            programs.context.architecture.head_params(programs.params),
            residual,
            programs.whole((key.tokens, NUM_GIVEN_COLUMNS)),
        )
        return programs.sharded("scored_tokens_step", run, arguments, WHOLE, donate=())

    def options(self, key: ScoredTokensKey, *, num_devices: int) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)
