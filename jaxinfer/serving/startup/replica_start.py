"""Starts replicas: the first like any engine, the others with its number of blocks and programs."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.serving.compile.lowering import start_lowering
from jaxinfer.serving.replicas.group import ReplicaGroup
from jaxinfer.serving.replicas.placement import replica_params
from jaxinfer.serving.replicas.prompts_apart import PromptsApart
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.runner.device_params import describe_params
from jaxinfer.serving.startup.apart import ApartTiers
from jaxinfer.serving.startup.engine_start import StartSettings, start_engine
from jaxinfer.startup_report import StartupReport


def start_replicas(
    setup: StartSettings,
    params: Mapping[str, Any],
    meshes: Sequence[Mesh],
    apart: ApartTiers | None = None,
) -> list[StartedReplica]:
    """Build an engine on each mesh; they have equally many KV blocks and share traced programs.

    Args:
        setup: the model and the engine's arguments, for each replica.
        params: the parameter tree, on the devices of all replicas, some of them, or the host.
        meshes: the replicas' devices, equal in shape.
        apart: of replicas of which the last `prefill_replicas` compute prompts; None has all do
            everything.

    Raises:
        CapacityError: the KV cache of a replica can't hold one full-length request.
        ValueError: arguments contradict each other, or the devices can't do what is asked.
    """
    model, rules = setup.model_config, setup.rules
    trees = [replica_params(params, describe_params(params, model, mesh, rules)) for mesh in meshes]
    devices = [device for mesh in meshes for device in mesh.devices.flat]
    # Executables are bound to devices; JAX's cache lets replicas share them.
    lowering = start_lowering(setup.config.compilation_cache_dir, keeps=False)
    started: list[StartedReplica] = []
    with contextlib.ExitStack() as undo:
        num_decoders = len(meshes) - setup.config.prefill_replicas
        for i, (tree, mesh) in enumerate(zip(trees, meshes, strict=True)):
            if apart is not None:
                setup = dataclasses.replace(setup, tiers=apart.role(prefills=i >= num_decoders))
            each = start_engine(setup, tree, mesh, lowering=lowering, devices=devices)
            undo.callback(each.runner.close)
            started.append(each)
            first = started[0].runner
            config = dataclasses.replace(
                setup.config, num_kv_blocks=first.num_kv_blocks, max_model_len=first.max_model_len
            )
            setup = dataclasses.replace(setup, config=config)
        undo.pop_all()
    return started


def group_replicas(
    started: Sequence[StartedReplica], config: EngineConfig, apart: ApartTiers | None = None
) -> ReplicaGroup:
    """The engine that is made of these."""
    runner = started[0].runner
    prompts = None
    if apart is not None:
        prompts = PromptsApart(
            apart.handovers,
            num_prefills=config.prefill_replicas,
            block_size=config.block_size,
            token_budget=runner.max_num_batched_tokens,
            least_tokens=least_handed_over(runner.report.platform, config.block_size),
        )
    return ReplicaGroup(
        started,
        token_budget=runner.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        seed=config.seed,
        threads=_run_in_threads(runner.report),
        is_fair=config.scheduling_policy == "fair",
        apart=prompts,
    )


def least_handed_over(platform: str, block_size: int) -> int:
    """Tokens of a prompt that are worth a handover: fewer hardly make a decode step longer."""
    return 2 * block_size if platform == "cpu" else 128


def _run_in_threads(report: StartupReport) -> bool:
    """True if each replica runs in a thread of its own, False if all run in turn in the caller's.

    They run in turn if a replica has several emulated CPU devices, whose reductions could deadlock.
    """
    return report.platform != "cpu" or report.num_devices == 1
