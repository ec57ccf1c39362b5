"""Programs that sample: from the last hidden states of some rows to their tokens."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxinfer.kernels.policy import Kernels
from jaxinfer.sampling_fields import MAX_LABELS
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import StepKind
from jaxinfer.serving.programs.kinds.padding import uploaded, zeros
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.layout import SampledRows
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.sample_steps import sample_full_step, sample_step
from jaxinfer.serving.programs.upload import upload
from jaxinfer.serving.sampling.layout import AHEAD, WITH_SLOTS, SamplerMode


@dataclass(frozen=True)
class SamplerKey:
    """The key of a sampler: its number of rows and its mode."""

    rows: int
    mode: SamplerMode


class SamplerKind(StepKind[SamplerKey]):
    """Programs that sample, keyed by number of rows and mode."""

    key_type = SamplerKey
    uses_pages = False
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SamplerKey]:
        """A key for each mode and each number of rows in that mode."""
        return [SamplerKey(rows, mode) for mode in AHEAD for rows in buckets.sampler_rows(mode)]

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[SamplerKey]:
        """The samplers of modes "full" and "truncate", with the most rows."""
        rows = buckets.rows[-1]
        return SamplerKey(rows, "full"), SamplerKey(rows, "truncate")

    def program(self, programs: Programs, key: SamplerKey) -> Program:
        """The program of `sample_steps.sample_step` or, with the slots, `sample_full_step`."""
        head = programs.context.architecture.head_params(programs.params)
        arguments = (head, *_inputs(programs, key), programs.last_tokens)
        name, with_slots = f"sample_{key.mode}", key.mode in WITH_SLOTS
        step = functools.partial(
            sample_full_step if with_slots else sample_step, context=programs.context, mode=key.mode
        )

        def run(head: Any, hidden: jax.Array, rows: jax.Array, *kept: Any) -> Any:
            return step(head, hidden, SampledRows.split(rows, key.rows), *kept)

        if with_slots:
            arguments = (*arguments, programs.slot_state, *_labels(programs, key))
            results = (WHOLE, programs.slot_state, WHOLE)
            return programs.sharded(name, run, arguments, results, donate=(3, 4), to_host=(2,))
        arguments = (*arguments, programs.slot_state.edits.allowed)
        return programs.sharded(name, run, arguments, (WHOLE, WHOLE), donate=(3,), to_host=(1,))

    def options(self, key: SamplerKey, *, num_devices: int) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)

    def run(
        self,
        key: SamplerKey,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Sample the rows of a forward pass; `given` is what mode "measured" takes more."""
        inputs = (resident.head, before.hidden, before.rows, resident.last_tokens)
        if key.mode in WITH_SLOTS:
            more = upload(given, resident.last_tokens.sharding)
            last_tokens, slots, sampled = call(*inputs, resident.slots, *more)
            resident = resident._replace(slots=slots)
        else:
            last_tokens, sampled = call(*inputs, resident.slots.edits.allowed)
        return resident._replace(last_tokens=last_tokens), before._replace(sampled=sampled)

    def padding(self, programs: Programs, key: SamplerKey) -> tuple[StepOutputs, Any]:
        """Hidden states of zeros."""
        hidden, rows = uploaded(programs, zeros(_inputs(programs, key)))
        return StepOutputs(hidden, rows), zeros(_labels(programs, key))


def _inputs(programs: Programs, key: SamplerKey) -> tuple[Any, ...]:
    """The sampler's inputs: hidden states of the rows, and their `SampledRows.joined`."""
    hidden = programs.whole((key.rows, programs.context.config.hidden_size), programs.dtype)
    return hidden, programs.whole((SampledRows.size(key.rows),))


def _labels(programs: Programs, key: SamplerKey) -> tuple[Any, ...]:
    """The token ids that mode "measured" takes of each row."""
    return (programs.whole((key.rows, MAX_LABELS)),) if key.mode == "measured" else ()
