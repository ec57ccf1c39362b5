"""Remedies for a plan that does not fit: the smallest change of each kind that makes it fit."""

import dataclasses

from jaxinfer.config import EngineConfig
from jaxinfer.planning.devices import Chip
from jaxinfer.planning.drafts import DraftMemory
from jaxinfer.planning.memory import MemoryPlan, plan_memory
from jaxinfer.planning.replicas import Replicas
from jaxinfer.planning.shapes import ModelShape, expert_groups

_MOST_DEVICES = 64


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
    found = [_more_devices(shape, chip, dtype, config, drafts, rows, context)]
    found += [_shorter(memory, rows), _fewer(memory, context, replicas)]
    changes = tuple(change for change in found if change)
    return changes or (f"a device with more memory: no change of these fits a {chip.name}",)


def _more_devices(
    shape: ModelShape,
    chip: Chip,
    dtype: str,
    config: EngineConfig,
    drafts: DraftMemory,
    rows: int,
    context: int,
) -> str | None:
    groups = config.pipeline_parallel_size * config.context_parallel_size
    groups *= config.data_parallel_size
    for degree in range(config.tensor_parallel_size + 1, _MOST_DEVICES // groups + 1):
        larger = dataclasses.replace(config, tensor_parallel_size=degree)
        if _is_uneven(shape, larger):
            continue
        if plan_memory(shape, chip, dtype, larger, drafts).sequences(context) >= rows:
            return f"tensor parallelism over {degree} devices (--tp {degree})"
    return None


def _is_uneven(shape: ModelShape, config: EngineConfig) -> bool:
    try:
        groups = expert_groups(shape, config)
    except ValueError:
        return True
    return bool(shape.indivisible(config.tensor_parallel_size, groups))


def _shorter(memory: MemoryPlan, rows: int) -> str | None:
    longest = memory.longest(rows)
    return f"a context of at most {longest:,} tokens (--context {longest})" if longest else None


def _fewer(memory: MemoryPlan, context: int, replicas: Replicas) -> str | None:
    most = memory.sequences(context) * replicas.num_decoding
    return f"at most {most:,} sequences at once (--batch {most})" if most else None
