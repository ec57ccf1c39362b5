"""Programs that copy captured activations out of the pages, or make logits of them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Int32

from jaxinfer.model.sharding import logits_spec
from jaxinfer.serving.programs.buckets import Buckets
from jaxinfer.serving.programs.inspected_buckets import InspectedBuckets
from jaxinfer.serving.programs.inspected_layers import InspectedLayers
from jaxinfer.serving.programs.kinds.kind import ProgramKind
from jaxinfer.serving.programs.kinds.step_program import HEAD_OPTIONS
from jaxinfer.serving.programs.programs import WHOLE, Program, Programs
from jaxinfer.serving.programs.steps import StepContext

BLOCKS_A_READ = 16


@dataclass(frozen=True)
class ReadCapturedKey:
    """The key of a program that reads the activations of a number of blocks."""

    num_blocks: int
    logits: bool = False


class ReadCapturedKind(ProgramKind[ReadCapturedKey]):
    """Programs that read captured activations, in engines that have some; not warmed up."""

    key_type = ReadCapturedKey
    is_slow_to_trace = False

    def keys(self, buckets: Buckets, *, swaps: bool) -> Sequence[ReadCapturedKey]:
        """One key, where activations are captured."""
        if not isinstance(buckets, InspectedBuckets) or buckets.captured is None:
            return []
        return [ReadCapturedKey(BLOCKS_A_READ, buckets.captured == "logits")]

    def program(self, programs: Programs, key: ReadCapturedKey) -> Program:
        """The program of `read_captured`, or of `read_logits`."""
        context, ids = programs.context, programs.whole((key.num_blocks,))
        held = held_activations(programs.kv, context)
        if not key.logits:
            return programs.sharded(
                "read_captured", read_captured, (held, ids), (WHOLE,) * len(held), donate=()
            )
        head = context.architecture.head_params(programs.params)
        return programs.sharded(
            "read_logits",
            functools.partial(read_logits, context=context),
            (head, held, ids),
            (logits_spec(context.rules),),
            donate=(),
        )

    def options(self, key: ReadCapturedKey, *, num_devices: int) -> dict[str, Any]:
        """The options for programs whose only product is the head's."""
        return dict(HEAD_OPTIONS)


def held_activations(kv: Sequence[Any], context: StepContext) -> tuple[Any, ...]:
    """The pages of captured activations in a KV cache, in the order of their layers."""
    assert isinstance(context.loop, InspectedLayers)
    first = context.config.num_hidden_layers
    return tuple(kv[first : first + len(context.loop.captured)])


def read_captured(held: tuple[jax.Array, ...], ids: Int32[Array, " n"]) -> tuple[jax.Array, ...]:
    """What blocks hold for each layer, ``[n * S, E]``; ids lie in [0, P)."""
    return tuple(_of_blocks(pages, ids) for pages in held)


def read_logits(
    head: Any, held: tuple[jax.Array, ...], ids: Int32[Array, " n"], *, context: StepContext
) -> tuple[jax.Array]:
    """The model's logits of what blocks hold, float32 ``[n * S, V]``, split as the head is.

    Args:
        head: from `Architecture.head_params`.
        held: pages of the last layer's residual stream.
        ids: in [0, P).
        context: static.
    """
    model, config = context.architecture, context.config
    hidden = model.final_hidden(head, _of_blocks(held[0], ids), config)
    return (model.lm_head(head, hidden),)


def _of_blocks(pages: jax.Array, ids: jax.Array) -> jax.Array:
    return pages.at[ids].get(mode="clip").reshape(-1, *pages.shape[2:])
