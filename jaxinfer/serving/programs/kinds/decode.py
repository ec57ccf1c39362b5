"""Programs of one decode step without its sampler: a token of each row through the layers."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jaxinfer.kernels.policy import Kernels
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import StepKind
from jaxinfer.serving.programs.kinds.padding import decode_padding, on_host
from jaxinfer.serving.programs.kinds.step_program import step_options, step_program
from jaxinfer.serving.programs.layout import DecodeShape
from jaxinfer.serving.programs.programs import Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.steps import decode_step


class DecodeKind(StepKind[DecodeShape]):
    """Programs of decode steps without their samplers, keyed by bucket."""

    key_type = DecodeShape

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[DecodeShape]:
        """Every decode bucket."""
        return buckets.decode_shapes()[::-1]

    def largest(self, buckets: Buckets, kernels: Kernels) -> Sequence[DecodeShape]:
        """The largest decode bucket; none with Mosaic, where a prefill always needs more memory.

        Its kernels keep a decode's sums on the chip.
        """
        return () if kernels.backend == "mosaic" else buckets.decode_shapes()[-1:]

    def program(self, programs: Programs, key: DecodeShape) -> Program:
        """The program of `steps.decode_step`."""
        step = functools.partial(decode_step, forward=programs.forward)
        return step_program(programs, "decode_step", step, key, num_outputs=2)

    def options(self, key: DecodeShape, *, num_devices: int) -> dict[str, Any]:
        """The options of a step: see `step_options`."""
        return step_options(key.rows)

    def run(
        self,
        key: DecodeShape,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Feed a packed batch."""
        kv, hidden, rows = call(
            resident.params, resident.kv, given, resident.last_tokens, *resident.peers
        )
        return resident._replace(kv=kv), before._replace(hidden=hidden, rows=rows)

    def padding(self, programs: Programs, key: DecodeShape) -> tuple[StepOutputs, Any]:
        """A batch of one token in the first row."""
        return StepOutputs(), on_host(programs, decode_padding(key))
