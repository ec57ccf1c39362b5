"""Programs of a burst: several decode steps, each of which feeds what the one before it sampled."""

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jaxinfer.sampling_params import SamplingMode
from jaxinfer.serving.buckets import Buckets
from jaxinfer.serving.layout import DecodeShape
from jaxinfer.serving.program_kinds.kind import WHOLE, DeviceArrays, ProgramKind
from jaxinfer.serving.program_kinds.padding import decode_padding, uploaded, zeros
from jaxinfer.serving.program_kinds.step_program import step_options
from jaxinfer.serving.sample_steps import decode_burst, decode_full_burst

if TYPE_CHECKING:
    from jaxinfer.serving.programs import Program, Programs


@dataclass(frozen=True)
class BurstKey:
    """Several decode steps in one program."""

    shape: DecodeShape
    mode: SamplingMode
    num_steps: int


class BurstKind(ProgramKind[BurstKey]):
    """Bursts, by their buckets and what their sampler can do."""

    key_type = BurstKey
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[BurstKey]:
        """Every bucket of a burst in the modes that it has."""
        return [
            BurstKey(shape, mode, steps)
            for shape, steps in buckets.burst_shapes()
            for mode in buckets.burst_modes(shape)
        ]

    def program(self, programs: "Programs", key: BurstKey) -> "Program":
        """`sample_steps.decode_burst`, or `decode_full_burst` with the slots."""
        fixed = {
            "context": programs.context,
            "shape": key.shape,
            "num_steps": key.num_steps,
            "forward": programs.forward,
        }
        arrays = programs.sampling(key.shape.rows)
        packed = programs.whole((key.shape.size,))
        arguments = (programs.params, programs.kv, packed, arrays, programs.last_tokens)
        if key.mode == "full":
            run = functools.partial(decode_full_burst, **fixed)
            arguments = (*arguments, programs.slot_state, *programs.peers)
            results = (programs.kv, WHOLE, programs.slot_state, WHOLE)
            return programs.sharded("decode_full_burst", run, arguments, results, donate=(1, 4, 5))
        run = functools.partial(decode_burst, mode=key.mode, **fixed)
        arguments = (*arguments, *programs.peers)
        results = (programs.kv, WHOLE, WHOLE)
        return programs.sharded("decode_burst", run, arguments, results, donate=(1, 4))

    def options(self, key: BurstKey, *, num_devices: int, mailboxes: bool) -> dict[str, Any]:
        """Those of its steps."""
        return step_options(
            key.shape.rows,
            num_devices=num_devices,
            mailboxes=mailboxes,
            num_steps=key.num_steps,
        )

    def kernels(self, key: BurstKey) -> Hashable:
        """Those of a decode step."""
        return key.shape

    def warm_up(
        self, programs: "Programs", key: BurstKey, run: Callable[..., Any], arrays: DeviceArrays
    ) -> DeviceArrays:
        """One token in the first row."""
        sampling = zeros(programs.sampling(key.shape.rows))
        inputs = uploaded(programs, [decode_padding(key.shape), sampling])
        inputs = (arrays.params, arrays.kv, *inputs, arrays.last_tokens)
        if key.mode == "full":
            kv, last_tokens, slots, _ = run(*inputs, arrays.slots)
            return replace(arrays, kv=kv, last_tokens=last_tokens, slots=slots)
        kv, last_tokens, _ = run(*inputs)
        return replace(arrays, kv=kv, last_tokens=last_tokens)
