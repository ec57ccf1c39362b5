"""Programs that score a prompt's tokens with the hidden states of its prefill step."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.sample_steps import prompt_logprobs_step


@dataclass(frozen=True)
class PromptLogprobsKey:
    """The key of a program that scores a prefill step's tokens."""

    tokens: int


class PromptLogprobsKind(ProgramKind[PromptLogprobsKey]):
    """Programs that score prompts, keyed by the number of tokens in a step; not warmed up."""

    key_type = PromptLogprobsKey
    uses_pages = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[PromptLogprobsKey]:
        """A key for each number of tokens of a prefill step that scores."""
        return [PromptLogprobsKey(tokens) for tokens in sorted({t for t, _ in buckets.scored})]

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[PromptLogprobsKey]:
        """The program with the most tokens."""
        return (PromptLogprobsKey(buckets.prefill[-1][0]),)

    def program(self, programs: Programs, key: PromptLogprobsKey) -> Program:
        """The program of `sample_steps.prompt_logprobs_step`."""
        run = functools.partial(prompt_logprobs_step, context=programs.context)
        residual = programs.whole((key.tokens, programs.context.config.hidden_size), programs.dtype)
        arguments = (
            programs.context.architecture.head_params(programs.params),
            residual,
            programs.whole((key.tokens,)),
        )
        return programs.sharded("prompt_logprobs_step", run, arguments, WHOLE, donate=())

    def options(self, key: PromptLogprobsKey, *, num_devices: int) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)
