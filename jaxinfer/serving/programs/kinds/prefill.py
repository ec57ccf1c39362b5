"""Programs of one prefill step: prompts, or parts of them, through the layers."""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import DeviceArrays, ProgramKind
from jaxinfer.serving.programs.kinds.padding import on_host
from jaxinfer.serving.programs.kinds.step_program import step_options, step_program
from jaxinfer.serving.programs.layout import PrefillShape
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.steps import prefill_step
from jaxinfer.serving.programs.token_parts import part_sizes

_LONG_TOKENS = 2048  # beyond them the host is ahead of the device, recording or not


class PrefillKind(ProgramKind[PrefillShape]):
    """Programs of prefill steps, keyed by bucket."""

    key_type = PrefillShape

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[PrefillShape]:
        """Every prefill bucket."""
        return buckets.prefill_shapes()[::-1]

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[PrefillShape]:
        """The largest bucket that scores prompts."""
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
        """The same kernels for any number of tokens."""
        return key.rows, key.all_tokens

    def num_warm_up_runs(self, key: PrefillShape) -> int:
        """One run for long prefills."""
        return 1 if key.tokens > _LONG_TOKENS else super().num_warm_up_runs(key)

    def warm_up(
        self, programs: Programs, key: PrefillShape, run: Callable[..., Any], arrays: DeviceArrays
    ) -> DeviceArrays:
        """Run it on a batch of one token in the first row."""
        packed = on_host(programs, _padding(key))
        kv, *_ = run(arrays.params, arrays.kv, packed, arrays.last_tokens)
        return replace(arrays, kv=kv)


def _padding(shape: PrefillShape) -> np.ndarray:
    packed = shape.blank()
    fields = shape.split(packed)
    fields.context_lens[0] = 1
    fields.cu_seqlens[1:] = 1
    return packed
