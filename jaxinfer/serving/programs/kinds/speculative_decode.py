"""Programs of decode steps with drafts, and the one that tells the device what to draft from."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import PLAIN_MODES, Buckets
from jaxinfer.serving.programs.kinds.kind import ProgramKind, StepKind
from jaxinfer.serving.programs.kinds.padding import decode_padding, on_host
from jaxinfer.serving.programs.kinds.step_program import step_options
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.speculative.drafter import Drafter
from jaxinfer.serving.programs.speculative.speculative_step import (
    speculative_decode_step,
    write_texts,
)
from jaxinfer.serving.sampling.layout import SamplerMode
from jaxinfer.serving.scheduler.speculation import DraftSize

TOKENS_A_WRITE = 1024
"""Tokens that one launch writes into the texts that drafts are made from."""


@dataclass(frozen=True)
class SpeculativeDecodeKey:
    """The key of decode steps with drafts and their sampler, by rows without the drafts."""

    shape: DecodeShape
    mode: SamplerMode
    drafter: Drafter
    num_steps: int = 1


def speculative_key(
    buckets: Buckets, rows: int, mode: SamplerMode, num_steps: int = 1
) -> SpeculativeDecodeKey:
    """The key of the smallest launch with drafts for a number of rows and of steps.

    Raises:
        StopIteration: there are too many.
    """
    size, drafter = next(
        each
        for each in buckets.speculative
        if each[0] >= rows and num_steps in buckets.steps_with_drafts(each[0])
    )
    shape = DecodeShape(size, buckets.widths[-1], extra=buckets.extra)
    return SpeculativeDecodeKey(shape, mode, drafter, num_steps)


def draft_sizes(buckets: Buckets) -> list[DraftSize]:
    """The sizes of launches with drafts, which have as many steps as those without.

    A launch of few rows of a small model takes the host as long as it takes to launch, however
    many steps it has. With n steps it gives a row n tokens without drafts, and n' (1 + g) with n'
    steps and g right drafts in each: n' < n would need g > n / n' - 1 to gain anything, as of 8
    and 4 steps a right draft a step. With n' = n every right draft is a gain, and what is demanded
    of drafts is the time of their rows alone (`DraftRecord`).
    """
    sizes = []
    for rows, drafter in buckets.speculative:
        *_, several = buckets.steps_with_drafts(rows)
        few = min(rows, buckets.most_multi_step_rows) if several > 1 else rows
        sizes.append(DraftSize(few, drafter.num_tokens, several))
        if few < rows:
            sizes.append(DraftSize(rows, drafter.num_tokens))
    return sizes


class SpeculativeDecodeKind(StepKind[SpeculativeDecodeKey]):
    """Programs of decode steps with drafts, keyed by bucket, mode and rule."""

    key_type = SpeculativeDecodeKey
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SpeculativeDecodeKey]:
        """A key for each bucket, number of steps and mode; none in an engine without drafts."""
        return [
            speculative_key(buckets, rows, mode, num_steps)
            for rows, _ in buckets.speculative[::-1]
            for num_steps in buckets.steps_with_drafts(rows)
            for mode in PLAIN_MODES
        ]

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[SpeculativeDecodeKey]:
        """The one with the most rows, which searches the texts for all of them."""
        return self.keys(buckets, swaps=False)[:1]

    def program(self, programs: Programs, key: SpeculativeDecodeKey) -> Program:
        """The program of `speculative_step.speculative_decode_step`."""
        run = functools.partial(
            speculative_decode_step,
            context=programs.context,
            shape=key.shape,
            mode=key.mode,
            drafter=key.drafter,
            num_steps=key.num_steps,
            forward=programs.forward,
        )
        state = programs.draft_state
        arguments = (
            programs.params,
            programs.kv,
            programs.on_host((key.shape.size,)),
            programs.last_tokens,
            state,
            programs.slot_state.edits.allowed,
            *programs.peers,
        )
        results = (programs.kv, WHOLE, state, WHOLE)
        return programs.sharded(
            "speculative_decode_step", run, arguments, results, donate=(1, 3, 4), to_host=(3,)
        )

    def options(self, key: SpeculativeDecodeKey, *, num_devices: int) -> dict[str, Any]:
        """The options of a step: see `step_options`."""
        return step_options(key.shape.rows * (key.drafter.num_tokens + 1))

    def run(
        self,
        key: SpeculativeDecodeKey,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Feed a packed batch with drafts, sample and accept."""
        kept, allowed = resident, resident.slots.edits.allowed
        kv, last_tokens, drafts, sampled = call(
            kept.params, kept.kv, given, kept.last_tokens, kept.drafts, allowed, *kept.peers
        )
        resident = resident._replace(kv=kv, last_tokens=last_tokens, drafts=drafts)
        return resident, before._replace(sampled=sampled)

    def padding(self, programs: Programs, key: SpeculativeDecodeKey) -> tuple[StepOutputs, Any]:
        """A batch of one token in the first row."""
        return StepOutputs(), on_host(programs, decode_padding(key.shape))


@dataclass(frozen=True)
class WriteTextsKey:
    """The key of the program that writes tokens to draft from, by their most."""

    tokens: int


class WriteTextsKind(ProgramKind[WriteTextsKey]):
    """The program that writes tokens to draft from; not warmed up.

    Its shapes follow the longest sequence, which the number of KV blocks may cut.
    """

    key_type = WriteTextsKey
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[WriteTextsKey]:
        """One key, for the size of the host's writes; none in an engine without drafts."""
        return [WriteTextsKey(TOKENS_A_WRITE)] if buckets.speculative else []

    def program(self, programs: Programs, key: WriteTextsKey) -> Program:
        """The program of `speculative_step.write_texts`."""
        state = programs.draft_state
        arguments = (state, programs.whole((4,)), programs.whole((key.tokens,)))
        return programs.sharded("write_texts", write_texts, arguments, state, donate=(0,))
