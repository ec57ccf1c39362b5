"""Start-up: from engine arguments to a model on its devices, ready for the first request."""

import contextlib
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError, ModelLoadError
from jaxinfer.model.checkpoint.hub import resolve_model
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.generation_config import GenerationConfig
from jaxinfer.model.score_head import SCORE, ScoreHead
from jaxinfer.model.sharding import (
    ShardingRules,
    check_divisible,
    num_expert_groups,
    spans_processes,
    tensor_parallel_size,
)
from jaxinfer.model.stages.stage_layers import stage_layers
from jaxinfer.model.stages.staged_params import num_stages
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.progress import ProgressBar
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.compile.cache.executable_store import keeps_executables
from jaxinfer.serving.compile.cache.persistent_cache import ONE_AT_A_TIME, persistent_cache
from jaxinfer.serving.constraints.request_constraints import RequestConstraints
from jaxinfer.serving.engine.steppable import Steppable
from jaxinfer.serving.inspection.engine_inspection import EngineInspection, start_inspection
from jaxinfer.serving.inspection.no_inspection import NoInspection
from jaxinfer.serving.processes.description import (
    describe_engine,
    describe_environment,
    describe_model,
)
from jaxinfer.serving.processes.engines import Follower, Leader
from jaxinfer.serving.processes.group import ProcessGroup, meet
from jaxinfer.serving.recording.expert_use import ExpertUse
from jaxinfer.serving.replicas.meshes import split_mesh
from jaxinfer.serving.replicas.started_replica import StartedReplica
from jaxinfer.serving.requests.exact_params import Exactness
from jaxinfer.serving.requests.prompts import PromptReader
from jaxinfer.serving.runner.device_params import given_dtype
from jaxinfer.serving.runner.experts.placed_experts import PlacedExperts
from jaxinfer.serving.sampling.sampler import (
    check_logits_processor,
    check_sampler,
)
from jaxinfer.serving.startup.apart import ApartTiers
from jaxinfer.serving.startup.contexts import check_contexts, choose_contexts
from jaxinfer.serving.startup.draft_head import read_head_of
from jaxinfer.serving.startup.engine_start import (
    StartSettings,
    closing_on_failure,
    compile_ahead,
    start_engine,
)
from jaxinfer.serving.startup.expert_groups import choose_expert_groups, choose_slots
from jaxinfer.serving.startup.files import SharedFiles
from jaxinfer.serving.startup.mesh import announce_devices, choose_mesh, mesh_of
from jaxinfer.serving.startup.model_files import (
    read_classifier,
    read_generation_config,
    read_model_config,
    read_tokenizer,
    usable_eos_token_ids,
)
from jaxinfer.serving.startup.model_source import ModelSource
from jaxinfer.serving.startup.plan import choose_attention
from jaxinfer.serving.startup.replica_start import group_replicas, start_replicas
from jaxinfer.startup_report import StartupReport, StartUpTimes

_UNUSED_SWAP_SPACE = (
    'swap_space does nothing: preempted requests are computed again; write preemption_mode="swap" '
    "to have their KV blocks kept in host memory instead"
)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A running engine with its tokenizer, defaults and reports.

    Attributes:
        engine: one engine, or a group of replicas.
        follower: repeats process 0's calls, in the other processes; None on process 0.
        replicas: the engine's replicas, one or several.
        report: the start-up report of all replicas.
        reader: checks prompts for it.
        model_config: the model's shape.
        tokenizer: None for token ids only.
        generation: the sampling defaults of the model's authors.
        default_params: for calls that give none.
        constraints: makes the constraints of requests.
        start_up: the parts of the start's time.
        directory: of the model; None for a caller's parameters.
        classifier: the model's classifying head; None for a language model.
        experts: reads how the model's experts were used.
        placed_experts: where experts lie that move between devices; None without `enable_eplb`.
        inspection: lets requests ask for activations and for changes.
    """

    engine: Steppable
    follower: Follower | None
    replicas: tuple[StartedReplica, ...]
    report: StartupReport
    reader: PromptReader
    model_config: ModelConfig
    tokenizer: Tokenizer | None
    generation: GenerationConfig
    default_params: SamplingParams
    constraints: RequestConstraints
    start_up: StartUpTimes
    directory: pathlib.Path | None
    classifier: ScoreHead | None
    experts: ExpertUse
    placed_experts: PlacedExperts | None
    inspection: EngineInspection | NoInspection


def load_engine(config: EngineConfig, source: ModelSource) -> Loaded:
    """Load a model, allocate its cache, compile its steps; on several processes in step.

    Raises:
        ModelLoadError: the model can't be read; one line that names the file.
        CapacityError: the KV cache can't hold one full-length request.
        ValueError: arguments contradict each other, or the devices can't do what is asked.
        DistributedError: the processes differ, or another one failed.
    """
    mesh = source.mesh or mesh_of(source.params)
    group = meet() if mesh is None or spans_processes(mesh) else None
    if group is None:
        return _load(config, source.made(config), None)
    try:
        with group.reporting_failures():
            group.require_same(describe_environment() | source.describe())
            return _load(config, source.made(config), group)
    except BaseException:
        group.close()
        raise


def _load(config: EngineConfig, source: ModelSource, group: ProcessGroup | None) -> Loaded:
    start = time.perf_counter()
    files = SharedFiles(config)
    directory = None
    if source.params is None:
        directory = resolve_model(config.model, config.revision)
    model_config = read_model_config(directory, source.model_config, config)
    classifier = read_classifier(directory, model_config, config)
    num_processes = 1 if group is None else group.num_processes
    source.inspection.check(config, model_config, num_processes=num_processes)
    check_contexts(config, model_config, source, num_processes=num_processes)
    draft_head = read_head_of(config, model_config)
    if config.swap_space and config.preemption_mode != "swap":
        say(config, _UNUSED_SWAP_SPACE)
    if config.kv_offloading_size and num_processes > 1:
        raise ValueError(
            "kv_offloading_size needs all devices in one process; leave it out on several"
        )
    if source.logits_processor is not None:
        check_logits_processor(source.logits_processor, vocab_size=model_config.vocab_size)
    if source.sampler is not None:
        check_sampler(source.sampler, vocab_size=model_config.vocab_size)
    tokenizer = source.tokenizer or read_tokenizer(directory, config)
    generation = read_generation_config(directory, tokenizer)
    eos_token_ids = usable_eos_token_ids(model_config, generation, tokenizer)
    if config.generation_config == "vllm":
        generation = GenerationConfig()
    default_params = default_sampling_params(generation)
    mesh = choose_mesh(config, source)
    mesh, rules = choose_contexts(config, mesh, source.rules)
    mesh, rules = choose_expert_groups(config, model_config, mesh, rules)
    source = dataclasses.replace(source, rules=rules)
    meshes = split_mesh(mesh, rules)
    config = dataclasses.replace(config, data_parallel_size=len(meshes))
    apart = ApartTiers() if config.prefill_replicas else None
    if group is not None and len(meshes) > 1:
        raise ValueError(
            f"data_parallel_size is {len(meshes)}, but replicas run in one process and here are "
            f"{group.num_processes}; raise tensor_parallel_size, or start an engine for each host"
        )
    if group is not None and config.enable_lora:
        raise ValueError("enable_lora needs an engine in one process; leave it out")
    num_groups = num_expert_groups(mesh, rules)
    stage_layers(model_config, num_stages(mesh))
    check_divisible(model_config, tensor_parallel_size(mesh, rules), num_groups)
    say(config, announce_devices(mesh, group))
    if group is not None:
        hooks = {"logits_processor": source.logits_processor, "sampler": source.sampler}
        group.require_same(describe_engine(config, model_config, mesh, source.rules))
        group.require_same(
            describe_model(directory, source.params, tokenizer, eos_token_ids, hooks)
        )
        config = _on_this_process(config, group, mesh)
    if source.params is not None and config.dtype != "auto":
        _check_dtype(source.params, config.dtype)
    constraints = RequestConstraints(tokenizer, model_config.vocab_size, eos_token_ids)
    setup = StartSettings(
        model_config,
        config,
        source.rules,
        eos_token_ids,
        tokenizer,
        source.logits_processor,
        source.sampler,
        owns_params=directory is not None or source.owns_params,
        constraints=constraints,
        fewest=int if group is None else lambda count: min(group.agree("KV blocks", count)),
        draft_head=draft_head,
        placed_experts=choose_slots(config, model_config, meshes, rules),
        inspection=source.inspection,
        files=files,
    )
    cache = functools.partial(persistent_cache, config.compilation_cache_dir)
    params = source.params or {}
    if directory is not None:
        with cache(), _memory_errors_explained():  # checking the weights compiles programs, too
            beside = () if classifier is None else (SCORE,)
            params = _load_weights(directory, model_config, config, mesh, source.rules, beside)
    load_s = time.perf_counter() - start
    with ONE_AT_A_TIME:
        keeps = len(meshes) == 1 and keeps_executables(list(mesh.devices.flat))
        # If JAX's cache keeps them, in one block: programs go on compiling from one step to the
        # next.
        with contextlib.nullcontext() if keeps else cache():
            with _memory_errors_explained(source.inspection.share(model_config)):
                if len(meshes) == 1:
                    started = [start_engine(setup, params, mesh)]
                else:
                    started = start_replicas(setup, params, meshes, apart)
            runner = started[0].runner
            report = runner.report if len(started) == 1 else runner.report.of_replicas(len(started))
            say(config, str(report))
            with closing_on_failure(started):  # also Ctrl-C while compiling
                compile_ahead(started)
                if group is not None:
                    group.agree("ready", True)
    engine, follower = _engine_of_processes(started, config, group, apart)
    return Loaded(
        engine,
        follower,
        tuple(started),
        report,
        PromptReader(
            tokenizer,
            model_config.vocab_size,
            runner.max_model_len,
            config.count_logprobs(model_config.vocab_size),
            Exactness(
                config.logprobs_mode,
                source.logits_processor is not None,
                source.sampler is not None,
            ),
            model_config.max_context_length,
        ),
        model_config,
        tokenizer,
        generation,
        default_params,
        constraints,
        runner.start_up_times(load_s),
        directory,
        classifier,
        ExpertUse(engine, started, model_config if config.expert_statistics else None),
        setup.placed_experts,
        start_inspection(source.inspection, engine, started),
    )


def default_sampling_params(generation: GenerationConfig) -> SamplingParams:
    """`SamplingParams()` with the defaults of `generation_config.json`.

    Raises:
        ModelLoadError: the file holds a value that can't be sampled with; names file and field.
    """
    try:
        return SamplingParams.from_generation_config(generation.values)
    except (TypeError, ValueError) as error:
        raise ModelLoadError(f"{generation.origin}: {error}") from None


def say(config: EngineConfig, text: str) -> None:
    """Print a line about start-up to stderr, unless `config` asks for no output."""
    if config.show_progress:
        print(text, file=sys.stderr, flush=True)


def _engine_of_processes(
    started: Sequence[StartedReplica],
    config: EngineConfig,
    group: ProcessGroup | None,
    apart: ApartTiers | None,
) -> tuple[Steppable, Follower | None]:
    """The engine that takes requests here, or the follower if process 0 takes them."""
    engine = started[0].engine
    if len(started) > 1:
        return group_replicas(started, config, apart), None
    if group is None:
        return engine, None
    if group.leads:
        return Leader(engine, group, config.seed), None
    return engine, Follower(engine, group)


def _on_this_process(config: EngineConfig, group: ProcessGroup, mesh: Mesh) -> EngineConfig:
    """The arguments for this process: only process 0 shows progress; no cache on a GPU."""
    platform = mesh.devices.flat[0].platform
    return dataclasses.replace(
        config,
        show_progress=config.show_progress and group.leads,
        # On a GPU, processes tune their kernels together: all of them must compile a program.
        compilation_cache_dir=config.compilation_cache_dir if platform == "cpu" else "",
    )


def _load_weights(
    directory: pathlib.Path,
    model_config: ModelConfig,
    config: EngineConfig,
    mesh: Mesh,
    rules: ShardingRules,
    beside: Sequence[str],
) -> dict[str, Any]:
    dtype = config.resolve_dtype(model_config.dtype, mesh.devices.flat[0].platform)
    choose_attention(model_config, config, mesh, dtype)  # fails before the wait
    shown = config.show_progress
    with ProgressBar(None, "Loading weights", enabled=shown, unit="B", unit_scale=True) as bar:
        return load_params(directory, model_config, dtype, mesh, rules, bar.advance_to, beside)


@contextlib.contextmanager
def _memory_errors_explained(remedy: str = "") -> Iterator[None]:
    """Turn XLA's out-of-memory errors into one line with the remedy; `remedy` is one more."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        first = str(error).splitlines()[0]
        settings = "num_kv_blocks or max_model_len"
        if jax.default_backend() != "cpu":
            settings = "gpu_memory_utilization or num_kv_blocks"
        raise CapacityError(
            "the device has too little memory for the weights and the KV cache; lower "
            f"{settings}, raise tensor_parallel_size, or end other programs that use it{remedy} "
            f"({first})"
        ) from None


def _check_dtype(params: Any, dtype: str) -> None:
    given = given_dtype(params)
    if given != dtype:
        raise ValueError(f"dtype is {dtype}, but params are {given}; cast them or leave dtype out")
