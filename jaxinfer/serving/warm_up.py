"""Runs an engine's programs before the first request does, so that it meets them warm.

The first run of a program loads its code, and one of the next records its kernels as a CUDA graph,
which takes longer than a short step itself.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs import BurstKey, ProgramKey, Programs, SamplerKey
from jaxinfer.serving.sampling.layout import SlotState
from jaxinfer.serving.upload import upload

_RUNS = 3
_LONG_TOKENS = 2048  # beyond them the host is ahead of the device, recording or not


def warm_up(
    programs: Programs,
    keys: Iterable[ProgramKey],
    run: Callable[..., Any],
    params: Any,
    head: Any,
    kv: Any,
    last_tokens: jax.Array,
    slots: SlotState,
) -> tuple[Any, jax.Array, SlotState]:
    """Run steps and samplers of padding, which write to block 0 and to slots that nobody holds yet.

    Args:
        programs: the engine's.
        keys: which programs; those that move blocks or score prompts are left out.
        run: ``run(key, *arguments)`` runs a compiled program.
        params: the parameter tree.
        head: from `sample_steps.head_params`.
        kv: the pages; donated.
        last_tokens: newest token of each slot; donated.
        slots: what mode "full" keeps of each slot; donated.

    Returns:
        The pages, the newest tokens, and the slots.
    """
    for key in keys:
        for _ in range(_num_runs(key)):
            match key:
                case PrefillShape() | DecodeShape():
                    (packed,) = _uploaded(programs, [_padding(key)])
                    kv, *_ = run(key, params, kv, packed, last_tokens)
                case BurstKey():
                    arrays = _zeros(programs.program(key).arguments[3])
                    packed, arrays = _uploaded(programs, [_padding(key.shape), arrays])
                    inputs = (key, params, kv, packed, arrays, last_tokens)
                    if key.mode == "full":
                        kv, last_tokens, slots, _ = run(*inputs, slots)
                    else:
                        kv, last_tokens, _ = run(*inputs)
                case SamplerKey():
                    inputs = _uploaded(programs, _zeros(programs.program(key).arguments[1:4]))
                    if key.mode == "full":
                        last_tokens, slots, _ = run(key, head, *inputs, last_tokens, slots)
                    else:
                        last_tokens, _ = run(key, head, *inputs, last_tokens)
    return jax.block_until_ready((kv, last_tokens, slots))


def _num_runs(key: ProgramKey) -> int:
    is_long = isinstance(key, PrefillShape) and key.tokens > _LONG_TOKENS
    return 1 if is_long else _RUNS


def _padding(shape: PrefillShape | DecodeShape) -> np.ndarray:
    """A batch of one token in the first row."""
    packed = np.zeros(shape.size, np.int32)
    shape.split(packed).context_lens[0] = 1
    if isinstance(shape, PrefillShape):
        shape.split(packed).cu_seqlens[1:] = 1
    else:
        shape.split(packed).num_tokens[0] = 1
    return packed


def _zeros(structs: Any) -> Any:
    return jax.tree.map(lambda struct: np.zeros(struct.shape, struct.dtype), structs)


def _uploaded(programs: Programs, arrays: Any) -> Any:
    return upload(arrays, programs.last_tokens.sharding)
