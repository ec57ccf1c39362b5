"""Programs of decode steps with their samplers, for steps so short that a launch's cost matters."""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxinfer.serving.programs.buckets import PLAIN_MODES, Buckets
from jaxinfer.serving.programs.kinds.kind import StepKind
from jaxinfer.serving.programs.kinds.padding import decode_padding, on_host
from jaxinfer.serving.programs.kinds.step_program import step_options
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.sample_steps import sampled_decode_step
from jaxinfer.serving.sampling.layout import SamplerMode


@dataclass(frozen=True)
class SampledDecodeKey:
    """The key of a decode step with its sampler, or of several such steps in one launch."""

    shape: DecodeShape
    mode: SamplerMode
    num_steps: int = 1


class SampledDecodeKind(StepKind[SampledDecodeKey]):
    """Programs of decode steps with their samplers, keyed by bucket and mode."""

    key_type = SampledDecodeKey
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[SampledDecodeKey]:
        """A key for each bucket of such steps, in each mode."""
        return [
            SampledDecodeKey(shape, mode, num_steps)
            for shape in buckets.sampled_decode_shapes()[::-1]
            for num_steps in buckets.steps_of_launches(shape.rows)
            for mode in PLAIN_MODES
        ]

    def program(self, programs: Programs, key: SampledDecodeKey) -> Program:
        """The program of `sample_steps.sampled_decode_step`."""
        run = functools.partial(
            sampled_decode_step,
            context=programs.context,
            shape=key.shape,
            mode=key.mode,
            num_steps=key.num_steps,
            forward=programs.forward,
        )
        arguments = (
            programs.params,
            programs.kv,
            programs.on_host((key.shape.size,)),
            programs.last_tokens,
            programs.slot_state.edits.allowed,
            *programs.peers,
        )
        results = (programs.kv, WHOLE, WHOLE)
        return programs.sharded(
            "sampled_decode_step", run, arguments, results, donate=(1, 3), to_host=(2,)
        )

    def options(self, key: SampledDecodeKey, *, num_devices: int) -> dict[str, Any]:
        """The options of a step: see `step_options`."""
        return step_options(key.shape.rows)

    def kernels(self, key: SampledDecodeKey) -> Hashable:
        """The kernels of a decode step without its sampler."""
        return key.shape

    def run(
        self,
        key: SampledDecodeKey,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Feed a packed batch and sample."""
        allowed = resident.slots.edits.allowed
        kv, last_tokens, sampled = call(
            resident.params, resident.kv, given, resident.last_tokens, allowed, *resident.peers
        )
        resident = resident._replace(kv=kv, last_tokens=last_tokens)
        return resident, before._replace(sampled=sampled)

    def padding(self, programs: Programs, key: SampledDecodeKey) -> tuple[StepOutputs, Any]:
        """A batch of one token in the first row."""
        return StepOutputs(), on_host(programs, decode_padding(key.shape))
