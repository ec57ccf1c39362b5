"""Programs of several decode steps, each of which feeds what the one before it sampled."""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import WHOLE, DeviceArrays, ProgramKind
from jaxinfer.serving.programs.kinds.padding import decode_padding, uploaded, zeros
from jaxinfer.serving.programs.kinds.step_program import step_options
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.sample_steps import decode_full_multi_step, decode_multi_step
from jaxinfer.serving.sampling.layout import WITH_SLOTS, SamplerMode

if TYPE_CHECKING:
    from jaxinfer.serving.programs.programs import Program, Programs


@dataclass(frozen=True)
class MultiStepDecodeKey:
    """The key of a program of several decode steps."""

    shape: DecodeShape
    mode: SamplerMode
    num_steps: int


class MultiStepDecodeKind(ProgramKind[MultiStepDecodeKey]):
    """Programs of multi-step decodes, keyed by bucket and sampler mode."""

    key_type = MultiStepDecodeKey
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[MultiStepDecodeKey]:
        """A key for each bucket of a multi-step decode, in each of its modes."""
        return [
            MultiStepDecodeKey(shape, mode, steps)
            for shape, steps in buckets.multi_step_shapes()
            for mode in buckets.multi_step_modes(shape)
        ]

    def program(self, programs: "Programs", key: MultiStepDecodeKey) -> "Program":
        """The program of `decode_multi_step` or, with the slots, `decode_full_multi_step`."""
        fixed = {
            "context": programs.context,
            "shape": key.shape,
            "num_steps": key.num_steps,
            "forward": programs.forward,
        }
        arrays = programs.sampling(key.shape.rows, key.mode)
        packed = programs.whole((key.shape.size,))
        arguments = (programs.params, programs.kv, packed, arrays, programs.last_tokens)
        if key.mode in WITH_SLOTS:
            run = functools.partial(decode_full_multi_step, mode=key.mode, **fixed)
            arguments = (*arguments, programs.slot_state, *programs.peers)
            results = (programs.kv, WHOLE, programs.slot_state, WHOLE)
            return programs.sharded(
                "decode_full_multi_step", run, arguments, results, donate=(1, 4, 5)
            )
        run = functools.partial(decode_multi_step, mode=key.mode, **fixed)
        arguments = (*arguments, programs.slot_state.edits.allowed, *programs.peers)
        results = (programs.kv, WHOLE, WHOLE)
        return programs.sharded("decode_multi_step", run, arguments, results, donate=(1, 4))

    def options(
        self, key: MultiStepDecodeKey, *, num_devices: int, peer_buffers: bool
    ) -> dict[str, Any]:
        """As of a single decode step."""
        return step_options(
            key.shape.rows,
            num_devices=num_devices,
            peer_buffers=peer_buffers,
            num_steps=key.num_steps,
        )

    def kernels(self, key: MultiStepDecodeKey) -> Hashable:
        """As of a single decode step."""
        return key.shape

    def warm_up(
        self,
        programs: "Programs",
        key: MultiStepDecodeKey,
        run: Callable[..., Any],
        arrays: DeviceArrays,
    ) -> DeviceArrays:
        """Run it on a batch of one token in the first row."""
        sampling = zeros(programs.sampling(key.shape.rows, key.mode))
        inputs = uploaded(programs, [decode_padding(key.shape), sampling])
        inputs = (arrays.params, arrays.kv, *inputs, arrays.last_tokens)
        if key.mode in WITH_SLOTS:
            kv, last_tokens, slots, _ = run(*inputs, arrays.slots)
            return replace(arrays, kv=kv, last_tokens=last_tokens, slots=slots)
        kv, last_tokens, _ = run(*inputs, arrays.slots.edits.allowed)
        return replace(arrays, kv=kv, last_tokens=last_tokens)
