"""Expert parallelism at start: the groups of devices that have whole experts, if any are wanted."""

from collections.abc import Sequence

from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.degrees import check_expert_groups
from jaxinfer.model.sharding import (
    EXPERT_AXIS,
    ShardingRules,
    num_expert_groups,
    spans_processes,
    split_experts,
    tensor_parallel_size,
)
from jaxinfer.serving.replicas.meshes import num_replicas
from jaxinfer.serving.runner.experts.placed_experts import PlacedExperts


def choose_expert_groups(
    config: EngineConfig, model_config: ModelConfig, mesh: Mesh, rules: ShardingRules
) -> tuple[Mesh, ShardingRules]:
    """The mesh and the rules with experts split as `config` asks; as they are if it does not.

    Rules that put experts on an axis of the caller's mesh are kept, with or without the argument.

    Raises:
        ValueError: the model has no experts, they don't split over the devices, or the caller's
            rules say otherwise.
    """
    if not config.enable_expert_parallel:
        return mesh, rules
    size, wanted = tensor_parallel_size(mesh, rules), config.expert_parallel_size
    if rules.experts is not None:
        wanted = num_expert_groups(mesh, rules)
        if config.expert_parallel_size not in (None, wanted):
            raise ValueError(
                f"expert_parallel_size is {config.expert_parallel_size}, but the sharding rules "
                f"put experts on mesh axis {rules.experts!r}, which has {wanted} devices; leave "
                "expert_parallel_size out"
            )
        check_expert_groups(model_config, size, wanted)
        return mesh, rules
    groups = check_expert_groups(model_config, size, wanted)
    if size == 1 < num_replicas(mesh, rules):
        raise ValueError(
            "enable_expert_parallel splits experts over the devices of a replica, and each replica "
            "has one; raise tensor_parallel_size, or leave it out"
        )
    if not isinstance(rules.heads, str | None) or EXPERT_AXIS in mesh.axis_names:
        raise ValueError(
            "enable_expert_parallel can't choose among the mesh's axes "
            f"{', '.join(map(repr, mesh.axis_names))}; name the axis of experts in "
            "rules=ShardingRules(experts=...), and both axes for all else"
        )
    return split_experts(mesh, rules, groups)


def choose_slots(
    config: EngineConfig, model_config: ModelConfig, meshes: Sequence[Mesh], rules: ShardingRules
) -> PlacedExperts | None:
    """Where experts lie that `config` lets move between devices; None if it does not.

    Raises:
        ValueError: there are several replicas or processes, or as `PlacedExperts`.
    """
    if not config.enable_eplb:
        return None
    if len(meshes) > 1 or spans_processes(meshes[0]):
        raise ValueError(
            "enable_eplb works in an engine of one replica, in one process; leave it out, or start "
            "an engine for each"
        )
    return PlacedExperts(model_config, meshes[0], rules, config.redundant_experts)
