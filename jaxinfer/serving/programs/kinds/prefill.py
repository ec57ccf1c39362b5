"""Programs of one prefill step: prompts, or parts of them, through the layers."""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import StepKind
from jaxinfer.serving.programs.kinds.padding import on_host
from jaxinfer.serving.programs.kinds.step_program import step_options, step_program
from jaxinfer.serving.programs.layout import PrefillShape
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.steps import prefill_step
from jaxinfer.serving.programs.token_parts import part_sizes

_LONG_TOKENS = 2048  # longer steps hide the recording of a CUDA graph


class PrefillKind(StepKind[PrefillShape]):
    """Programs of prefill steps, keyed by bucket."""

    key_type = PrefillShape
    pools = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[PrefillShape]:
        """Every prefill bucket."""
        return buckets.prefill_shapes()[::-1]

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[PrefillShape]:
        """The largest bucket, which scores prompts where there is one that does."""
        return buckets.prefill_shapes()[-1:]

    def program(self, programs: Programs, key: PrefillShape) -> Program:
        """The program of `steps.prefill_step`; on several devices a long one runs in halves."""
        step, sizes = prefill_step, part_sizes(key.tokens, programs.context.num_devices)
        if len(sizes) > 1 and programs.context.architecture.overlapped_layer is not None:
            step = functools.partial(prefill_step, part_sizes=sizes)
        return step_program(programs, "prefill_step", step, key, num_outputs=3)

    def options(self, key: PrefillShape, *, num_devices: int) -> dict[str, Any]:
        """The options of a step whose tokens may go through the layers in parts."""
        return step_options(key.tokens, num_parts=len(part_sizes(key.tokens, num_devices)))

    def kernels(self, key: PrefillShape) -> Hashable:
        """One value for all: the kernels are the same for any number of tokens."""
        return key.rows, key.all_tokens

    def num_warm_up_runs(self, key: PrefillShape) -> int:
        """One run for long prefills."""
        return 1 if key.tokens > _LONG_TOKENS else super().num_warm_up_runs(key)

    def run(
        self,
        key: PrefillShape,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Feed a packed batch."""
        kv, hidden, rows, *residual = call(
            resident.params, resident.kv, given, resident.last_tokens, *resident.peers
        )
        return resident._replace(kv=kv), before._replace(
            hidden=hidden, rows=rows, residual=residual[0] if key.all_tokens else None
        )

    def padding(self, programs: Programs, key: PrefillShape) -> tuple[StepOutputs, Any]:
        """A batch of one token in the first row."""
        return StepOutputs(), on_host(programs, _padding(key))


def _padding(shape: PrefillShape) -> np.ndarray:
    packed = shape.blank()
    fields = shape.split(packed)
    fields.context_lens[0] = 1
    fields.cu_seqlens[1:] = 1
    return packed
