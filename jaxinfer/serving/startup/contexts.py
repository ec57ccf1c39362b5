"""Context parallelism at start: what it excludes, and the mesh with its axis."""

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.sharding import (
    CONTEXT_AXIS,
    TENSOR_AXIS,
    ShardingRules,
    make_mesh,
    tensor_parallel_size,
    with_contexts,
)
from jaxinfer.serving.programs.sequences.dealt_sequences import DealtSequences
from jaxinfer.serving.programs.steps import WholeSequences
from jaxinfer.serving.startup.model_source import ModelSource


def check_contexts(
    config: EngineConfig, model_config: ModelConfig, source: ModelSource, *, num_processes: int
) -> None:
    """Refuse what does not go with `context_parallel_size`, as far as the configuration can't tell.

    Raises:
        ValueError: names it.
    """
    if config.context_parallel_size == 1:
        return
    for what, is_there in (
        ("a model with experts", model_config.experts is not None),
        ("rules", source.rules != ShardingRules()),
        ("capture or intervention", source.inspection.is_wanted),
        ("an engine of several processes", num_processes > 1),
    ):
        if is_there:
            raise ValueError(
                f"context_parallel_size does not go with {what}; leave context_parallel_size out"
            )


def make_context_mesh(config: EngineConfig, available: Sequence[Any]) -> Mesh:
    """A mesh of the axis ``tensor`` with the devices of all contexts.

    Raises:
        ValueError: there are fewer; gives both numbers.
    """
    wanted = config.context_parallel_size * config.tensor_parallel_size
    if wanted > len(available):
        raise ValueError(
            f"context_parallel_size {config.context_parallel_size} x tensor_parallel_size "
            f"{config.tensor_parallel_size} needs {wanted} devices, and there are "
            f"{len(available)} {available[0].platform} devices; lower one of them"
        )
    return make_mesh(wanted, available)


def check_context_mesh(config: EngineConfig, mesh: Mesh) -> None:
    """Refuse a caller's mesh, or that of its parameters, without the axis of contexts.

    Raises:
        ValueError: names the axes that it must have.
    """
    size, axes = config.context_parallel_size, (CONTEXT_AXIS, TENSOR_AXIS)
    if size > 1 and (mesh.axis_names != axes or mesh.shape[CONTEXT_AXIS] != size):
        raise ValueError(
            f"context_parallel_size {size} needs a mesh of the axes {CONTEXT_AXIS!r} ({size} long) "
            f"and {TENSOR_AXIS!r}, not {dict(mesh.shape)}; leave mesh out, with params on one "
            "device or on the host"
        )


def choose_contexts(
    config: EngineConfig, mesh: Mesh, rules: ShardingRules
) -> tuple[Mesh, ShardingRules]:
    """The mesh and the rules with as many contexts as `config` asks for."""
    return with_contexts(mesh, rules, config.context_parallel_size)


def sequences_on(mesh: Mesh, rules: ShardingRules) -> WholeSequences:
    """How the tokens of sequences lie on these devices."""
    if rules.context is None:
        return WholeSequences()
    return DealtSequences(rules.context, mesh.shape[rules.context])


def num_exchanging(mesh: Mesh, rules: ShardingRules) -> int:
    """Devices along the one axis that steps exchange small arrays over."""
    size = tensor_parallel_size(mesh, rules)
    return size if size > 1 or rules.context is None else mesh.shape[rules.context]
