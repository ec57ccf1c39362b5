"""Builds one engine on its devices: runner, scheduler and loop, not compiled yet."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.model.adapters.device_slots import ADAPTERS, describe_slots, empty_slots
from jaxinfer.model.architecture import activation_dtype
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.files import DraftHead
from jaxinfer.model.draft_head.weights import DRAFT_HEAD, load_draft_head
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.compile.lowering import Lowering
from jaxinfer.serving.constraints.constraint import ConstraintSource
from jaxinfer.serving.engine.engine import Engine
from jaxinfer.serving.inspection.inspection import NO_INSPECTION, Inspection
from jaxinfer.serving.prefix_tiers.block_rows import MOST_BLOCKS
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.runner.device_params import describe_params, place_params
from jaxinfer.serving.runner.experts.placed_experts import PlacedExperts
from jaxinfer.serving.runner.runner import Runner
from jaxinfer.serving.runner.swap import HostBlocks
from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.pacing import Pacing, arrival_tokens
from jaxinfer.serving.scheduler.pipeline.pacing import PipelinePacing
from jaxinfer.serving.scheduler.pipeline.turn_planner import TurnPlanner
from jaxinfer.serving.scheduler.scheduler import Scheduler
from jaxinfer.serving.scheduler.step_planner import StepPlanner
from jaxinfer.serving.startup.files import NO_FILES, SharedFiles
from jaxinfer.serving.startup.own_tiers import OWN_TIERS, EngineTiers
from jaxinfer.serving.startup.plan import plan_engine


@dataclass(frozen=True)
class StartSettings:
    """The settings that all engines of a model share, on any devices.

    Attributes:
        model_config: the model's shape.
        config: the engine's arguments.
        rules: the sharding of the model over an engine's devices.
        eos_token_ids: tokens that end an answer.
        tokenizer: None for token ids only.
        logits_processor: see `check_logits_processor`.
        sampler: see `check_sampler`.
        owns_params: whether the engine alone holds the parameters.
        constraints: makes requests' constraints; None makes none.
        fewest: maps this process's number of KV blocks to the least of all processes.
        draft_head: the head that drafts; None without one.
        placed_experts: where experts lie that move between devices; None if none do.
        inspection: what is read and changed of activations.
        files: where KV blocks go that leave host memory.
        tiers: what lies behind the prefix cache, and what the engine is to others through it.
    """

    model_config: ModelConfig
    config: EngineConfig
    rules: ShardingRules
    eos_token_ids: Sequence[int] = ()
    tokenizer: Tokenizer | None = None
    logits_processor: LogitsProcessor | None = None
    sampler: CustomSampler | None = None
    owns_params: bool = False
    constraints: ConstraintSource | None = None
    fewest: Callable[[int], int] = int
    draft_head: DraftHead | None = None
    placed_experts: PlacedExperts | None = None
    inspection: Inspection = NO_INSPECTION
    files: SharedFiles = NO_FILES
    tiers: EngineTiers = OWN_TIERS


def start_engine(
    setup: StartSettings,
    params: Mapping[str, Any],
    mesh: Mesh,
    *,
    lowering: Lowering | None = None,
    devices: Sequence[Any] | None = None,
) -> StartedReplica:
    """Build an engine on a mesh.

    Args:
        setup: the model and the engine's arguments.
        params: the parameter tree; arrays that are placed already are used without a copy.
        mesh: the engine's devices.
        lowering: shared with other replicas of the model.
        devices: all replicas' devices, which bound the KV blocks.

    Raises:
        CapacityError: the KV cache can't hold one full-length request.
        ValueError: arguments contradict each other, or the devices can't do what is asked.
    """
    config = setup.config
    runner = start_runner(setup, params, mesh, lowering=lowering, devices=devices)
    stages = config.pipeline_parallel_size
    index, tiers = setup.tiers.sides(runner, config.block_tokens)
    scheduler = Scheduler(
        BlockPool(runner.num_kv_blocks, config.block_tokens, config.enable_prefix_caching, index),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=runner.max_num_batched_tokens,
        max_model_len=runner.max_model_len,
        eos_token_ids=setup.eos_token_ids,
        preemption_mode=config.preemption_mode,
        num_host_blocks=runner.num_host_blocks if config.preemption_mode == "swap" else 0,
        host_array_size=MOST_BLOCKS,
        is_fair=config.scheduling_policy == "fair",
        multi_step=runner.multi_step,
        speculation=runner.speculation,
        num_adapter_slots=config.max_loras if config.enable_lora else 0,
        tiers=tiers,
        planner=StepPlanner if stages == 1 else functools.partial(TurnPlanner, stages),
    )
    setup.tiers.attach(scheduler)
    tokens = arrival_tokens(runner.report.platform, config.max_num_seqs)
    pacing = Pacing if stages == 1 else functools.partial(PipelinePacing, stages)
    engine = Engine(
        runner,
        scheduler,
        setup.tokenizer,
        seed=config.seed,
        pacing=pacing(
            tokens if config.online else None, runs_apart=runner.report.platform != "cpu"
        ),
        constraints=setup.constraints,
    )
    return StartedReplica(engine, runner, scheduler)


def start_runner(
    setup: StartSettings,
    params: Mapping[str, Any],
    mesh: Mesh,
    *,
    lowering: Lowering | None = None,
    devices: Sequence[Any] | None = None,
) -> Runner:
    """Place the parameters, plan the engine around them, and take the devices.

    Arguments and errors as of `start_engine`.
    """
    wanted = describe_params(params, setup.model_config, mesh, setup.rules)
    placed = place_params(params, wanted)
    if setup.placed_experts is not None:
        owned = setup.owns_params
        placed, wanted = setup.placed_experts.at_start(placed, wanted, owned=owned)
    head = setup.draft_head
    if head is not None:
        beside = load_draft_head(head, activation_dtype(wanted), mesh)
        placed = {**placed, DRAFT_HEAD: beside}
        wanted[DRAFT_HEAD] = jax.tree.map(_describe, beside)
    if setup.config.enable_lora:
        slots = describe_slots(
            wanted,
            setup.model_config,
            activation_dtype(wanted),
            num_slots=setup.config.max_loras,
            ranks=setup.config.max_lora_rank,
        )
        placed = {**placed, ADAPTERS: empty_slots(slots)}
        wanted[ADAPTERS] = slots
    plan = plan_engine(
        wanted,
        setup.model_config,
        setup.config,
        mesh,
        setup.rules,
        logits_processor=setup.logits_processor,
        sampler=setup.sampler,
        fewest=setup.fewest,
        lowering=lowering,
        devices=devices,
        draft_head=None if head is None else head.config,
        inspection=setup.inspection,
    )
    head_config = None if head is None else head.config
    open_files = functools.partial(setup.files.open, plan.programs, placed, head_config)
    with contextlib.ExitStack() as undo:
        undo.callback(plan.close)
        # Before the tiers, which leave what they pin to XLA: these would take their part of it.
        host_blocks = HostBlocks(plan.programs, setup.config.swapped_gib)
        transfers = setup.tiers.start(plan.programs, setup.config, plan.platform, open_files)
        undo.pop_all()
    return Runner(
        placed,
        plan,
        setup.config,
        eos_token_ids=setup.eos_token_ids,
        tokenizer=setup.tokenizer,
        owns_params=setup.owns_params,
        host_blocks=host_blocks,
        transfers=transfers,
    )


def _describe(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def compile_ahead(started: Sequence[StartedReplica]) -> None:
    """Compile all programs that are wanted before the first request."""
    for each in started:
        if each.runner.compiles_ahead:
            each.runner.compile_all()


@contextlib.contextmanager
def closing_on_failure(started: Sequence[StartedReplica]) -> Iterator[None]:
    """Free the device memory if the block raises."""
    try:
        yield
    except BaseException:
        for each in started:
            each.runner.close()
        raise
