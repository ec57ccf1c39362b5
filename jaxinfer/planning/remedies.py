"""Remedies for a plan that does not fit: the smallest change of each kind that makes it fit."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from jaxinfer.config import EngineConfig
from jaxinfer.model.degrees import check_divisible
from jaxinfer.planning.devices import Chip
from jaxinfer.planning.drafts import DraftMemory
from jaxinfer.planning.memory import MemoryPlan, plan_memory
from jaxinfer.planning.replicas import Replicas
from jaxinfer.planning.shapes import ModelShape, check_contexts, expert_groups
from jaxinfer.planning.stages import stage_shapes

_MOST_DEVICES = 64
_FLAGS = {
    "tensor_parallel_size": "--tp",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "context_parallel_size": "--context-parallel-size",
    "data_parallel_size": "--data-parallel-size",
}
_WHOLE_EXPERTS = {"enable_expert_parallel": True, "expert_parallel_size": None}
_KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("tensor_parallel_size", "tensor parallelism over {} devices", {}),
    ("tensor_parallel_size", "expert parallelism over {} devices", _WHOLE_EXPERTS),
    ("pipeline_parallel_size", "{} pipeline stages", {}),
    ("context_parallel_size", "context parallelism over {} devices", {}),
)
"""The degree that is raised, what that is, and settings beside it."""


def remedies(
    shape: ModelShape,
    chip: Chip,
    dtype: str,
    config: EngineConfig,
    drafts: DraftMemory,
    *,
    rows: int,
    context: int,
) -> tuple[str, ...]:
    """Changes that let `rows` sequences of `context` tokens fit at once; empty if they do.

    Args:
        shape: the model.
        chip: each device.
        dtype: of keys and values, and of weights that are not quantized.
        config: the engine that was planned.
        drafts: what its drafts take.
        rows: sequences that run at once, over all replicas.
        context: tokens of each.
    """
    memory, replicas = plan_memory(shape, chip, dtype, config, drafts), Replicas.of(config)
    rows = replicas.rows(rows)
    if memory.sequences(context) >= rows:
        return ()
    found: list[str | None] = []
    for name, text, beside in _KINDS:
        if beside and (not shape.num_experts or config.enable_expert_parallel):
            continue
        for larger in _raised(shape, config, name, beside):
            if plan_memory(shape, chip, dtype, larger, drafts).sequences(context) >= rows:
                found.append(f"{text.format(getattr(larger, name))} ({_flags(larger)})")
                break
    found += [_shorter(memory, rows), _fewer(memory, context, replicas)]
    changes = tuple(change for change in found if change)
    return changes or (f"a device with more memory: no change of these fits a {chip.name}",)


def _raised(
    shape: ModelShape, config: EngineConfig, name: str, beside: dict[str, Any]
) -> Iterator[EngineConfig]:
    """The configurations with a larger degree that the model splits over, the least one first."""
    degree = getattr(config, name)
    others = math.prod(getattr(config, each) for each in _FLAGS) // degree
    for more in range(degree + 1, _MOST_DEVICES // others + 1):
        try:
            larger = dataclasses.replace(config, **{name: more}, **beside)
            check_contexts(shape, larger)
            check_divisible(shape, larger.tensor_parallel_size, expert_groups(shape, larger))
            stage_shapes(shape, larger.pipeline_parallel_size)
        except ValueError:
            continue
        yield larger


def _flags(config: EngineConfig) -> str:
    """All degrees of a configuration as flags, so that they can be typed as they are."""
    words = [f"{flag} {n}" for name, flag in _FLAGS.items() if (n := getattr(config, name)) > 1]
    if config.enable_expert_parallel:
        words.append("--enable-expert-parallel")
    if config.expert_parallel_size is not None:
        words.append(f"--expert-parallel-size {config.expert_parallel_size}")
    return " ".join(words)


def _shorter(memory: MemoryPlan, rows: int) -> str | None:
    longest = memory.longest(rows)
    return f"a context of at most {longest:,} tokens (--context {longest})" if longest else None


def _fewer(memory: MemoryPlan, context: int, replicas: Replicas) -> str | None:
    most = memory.sequences(context) * replicas.num_decoding
    return f"at most {most:,} sequences at once (--batch {most})" if most else None
