"""Programs that verify proposed tokens with the hidden states of their prefill step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.kinds.kind import StepKind
from jaxinfer.serving.programs.kinds.padding import uploaded, zeros
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.layout import SampledRows
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.resident import Resident, StepOutputs
from jaxinfer.serving.programs.verify.verify_step import verify_step
from jaxinfer.serving.sampling.layout import SamplerMode


@dataclass(frozen=True)
class VerifyKey:
    """The key of a sampler at several positions of each row of a prefill step, without slots."""

    tokens: int
    rows: int
    positions: int
    mode: SamplerMode


class VerifyKind(StepKind[VerifyKey]):
    """Verifying samplers, by the step's tokens and rows. They are not compiled ahead."""

    key_type = VerifyKey
    uses_pages = False
    runs_user_code = True

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[VerifyKey]:
        """None: nothing proposes tokens unless a caller of the scheduler does."""
        return ()

    def program(self, programs: Programs, key: VerifyKey) -> Program:
        """The program of `verify_step`."""

        def run(head: Any, residual: jax.Array, rows: jax.Array, *given: jax.Array) -> Any:
            split = SampledRows.split(rows, key.rows)
            return verify_step(
                head, residual, split, *given, context=programs.context, mode=key.mode
            )

        arguments = (
            programs.context.architecture.head_params(programs.params),
            *_inputs(programs, key),
            programs.last_tokens,
        )
        return programs.sharded(
            f"verify_{key.mode}", run, arguments, (WHOLE, WHOLE), donate=(5,), to_host=(1,)
        )

    def options(self, key: VerifyKey, *, num_devices: int) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)

    def run(
        self,
        key: VerifyKey,
        call: Callable[..., Any],
        resident: Resident,
        before: StepOutputs,
        given: Any,
    ) -> tuple[Resident, StepOutputs]:
        """Sample at several positions of each row; given are `VerifyArrays`."""
        inputs = (resident.head, before.residual, before.rows, *given, resident.last_tokens)
        last_tokens, sampled = call(*inputs)
        return resident._replace(last_tokens=last_tokens), before._replace(sampled=sampled)

    def padding(self, programs: Programs, key: VerifyKey) -> tuple[StepOutputs, Any]:
        """A residual stream of zeros."""
        residual, rows, *given = zeros(_inputs(programs, key))
        residual, rows, given = uploaded(programs, (residual, rows, given))
        return StepOutputs(rows=rows, residual=residual), given


def _inputs(programs: Programs, key: VerifyKey) -> tuple[Any, ...]:
    """Residual stream, `SampledRows.joined`, and `VerifyArrays`."""
    whole = programs.whole
    return (
        whole((key.tokens, programs.context.config.hidden_size), programs.dtype),
        whole((SampledRows.size(key.rows),)),
        whole((key.rows,)),
        whole((key.rows, key.positions)),
    )
