"""Programs that sample: from the last hidden states of some rows to their tokens."""

import functools
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxinfer.kernels.attention.op import Backend
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import WHOLE, DeviceArrays, ProgramKind
from jaxinfer.serving.programs.kinds.padding import uploaded, zeros
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.sample_steps import sample_full_step, sample_step
from jaxinfer.serving.sampling.layout import WITH_SLOTS, SamplerMode

if TYPE_CHECKING:
    from jaxinfer.serving.programs.programs import Program, Programs


@dataclass(frozen=True)
class SamplerKey:
    """The key of a sampler: its number of rows and its mode."""

    rows: int
    mode: SamplerMode


class SamplerKind(ProgramKind[SamplerKey]):
    """Programs that sample, keyed by number of rows and mode."""

    key_type = SamplerKey
    uses_pages = False
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SamplerKey]:
        """A key for each mode and each number of rows that it meets."""
        return [
            SamplerKey(rows, mode)
            for mode in typing.get_args(SamplerMode)
            for rows in buckets.sampler_rows(mode)
        ]

    def largest(self, buckets: Buckets, backend: Backend) -> Sequence[SamplerKey]:
        """The samplers of modes "full" and "truncate", with the most rows."""
        rows = buckets.rows[-1]
        return SamplerKey(rows, "full"), SamplerKey(rows, "truncate")

    def program(self, programs: "Programs", key: SamplerKey) -> "Program":
        """The program of `sample_steps.sample_step` or, with the slots, `sample_full_step`."""
        inputs = (
            programs.context.architecture.head_params(programs.params),
            *_inputs(programs, key),
        )
        arguments = (*inputs, programs.last_tokens)
        if key.mode in WITH_SLOTS:
            run = functools.partial(sample_full_step, context=programs.context, mode=key.mode)
            arguments = (*arguments, programs.slot_state)
            results = (WHOLE, programs.slot_state, WHOLE)
            return programs.sharded(f"sample_{key.mode}", run, arguments, results, donate=(4, 5))
        run = functools.partial(sample_step, context=programs.context, mode=key.mode)
        arguments = (*arguments, programs.slot_state.edits.allowed)
        name = f"sample_{key.mode}"
        return programs.sharded(name, run, arguments, (WHOLE, WHOLE), donate=(4,))

    def options(self, key: SamplerKey, *, num_devices: int, peer_buffers: bool) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)

    def warm_up(
        self, programs: "Programs", key: SamplerKey, run: Callable[..., Any], arrays: DeviceArrays
    ) -> DeviceArrays:
        """Run it on zeros."""
        inputs = uploaded(programs, zeros(_inputs(programs, key)))
        inputs = (arrays.head, *inputs, arrays.last_tokens)
        if key.mode in WITH_SLOTS:
            last_tokens, slots, _ = run(*inputs, arrays.slots)
            return replace(arrays, last_tokens=last_tokens, slots=slots)
        last_tokens, _ = run(*inputs, arrays.slots.edits.allowed)
        return replace(arrays, last_tokens=last_tokens)


def _inputs(programs: "Programs", key: SamplerKey) -> tuple[Any, ...]:
    """The sampler's inputs: hidden states of the rows, their slots, and how they are sampled."""
    hidden = programs.whole((key.rows, programs.context.config.hidden_size), programs.dtype)
    return hidden, programs.whole((2, key.rows)), programs.sampling(key.rows, key.mode)
