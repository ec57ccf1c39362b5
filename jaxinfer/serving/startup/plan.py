"""Plans an engine before anything is allocated: its kernels, shapes and number of KV blocks."""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import Mesh

from jaxinfer.config import EngineConfig
from jaxinfer.errors import CapacityError
from jaxinfer.kernels.attention.kv_cache_spec import Tally
from jaxinfer.kernels.attention.partial import BACKENDS
from jaxinfer.kernels.attention.shared_prefix import rows_in_item
from jaxinfer.kernels.choice import Backend, choose_backend, compute_capability_of
from jaxinfer.kernels.policy import Kernels
from jaxinfer.model.architecture import activation_dtype
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.head_config import HeadConfig
from jaxinfer.model.sharding import ShardingRules
from jaxinfer.model.stages.staged_params import num_stages, stage_meshes
from jaxinfer.planning.blocks import (
    blocks_beside_pages,
    blocks_on_devices,
    check_capacity,
    usable_tokens,
)
from jaxinfer.planning.memory import prefill_bytes
from jaxinfer.planning.shapes import shape_of
from jaxinfer.profiling.memory.memory_marks import memory_mark
from jaxinfer.serving.compile.cache.executable_store import keeps_executables
from jaxinfer.serving.compile.cache.persistent_cache import persistent_cache
from jaxinfer.serving.compile.compilation import CompilationCounter, CompiledPrograms
from jaxinfer.serving.compile.eager import EagerProgram, check_eager
from jaxinfer.serving.compile.jax_settings import check_matmul_precision
from jaxinfer.serving.compile.lowering import Lowering, start_lowering
from jaxinfer.serving.compile.staged_lowering import StagedLowering
from jaxinfer.serving.inspection.inspection import NO_INSPECTION, Inspection
from jaxinfer.serving.programs.adapted_layers import AdaptedLayers
from jaxinfer.serving.programs.buckets import MULTI_STEP_ROWS, Buckets
from jaxinfer.serving.programs.choose_buckets import choose_buckets, for_pipeline, for_pooling
from jaxinfer.serving.programs.counted_experts import CountedExperts
from jaxinfer.serving.programs.kinds.kind import ProgramKey
from jaxinfer.serving.programs.layer_loop import LayerLoop
from jaxinfer.serving.programs.peer_buffers import have_peer_buffers, reach_each_other
from jaxinfer.serving.programs.pipeline.stage_programs import PipelinePrograms
from jaxinfer.serving.programs.program_set import (
    all_programs,
    largest_programs,
    options_of,
    program_of,
    uses_pages,
)
from jaxinfer.serving.programs.programs import Programs
from jaxinfer.serving.programs.speculative.drafter import Drafter, DraftTextSizes
from jaxinfer.serving.programs.speculative.heads import HEADS
from jaxinfer.serving.programs.speculative.lookup import LookupDrafter
from jaxinfer.serving.programs.speculative.watched_layers import WatchedLayers
from jaxinfer.serving.programs.steps import EVERY_LAYER, StepContext
from jaxinfer.serving.runner.engine_plan import EnginePlan
from jaxinfer.serving.runner.host_inputs import HostInputs
from jaxinfer.serving.runner.pipeline.staged_host_inputs import StagedHostInputs
from jaxinfer.serving.sampling.sampler import CustomSampler, LogitsProcessor
from jaxinfer.serving.slots.adapter_datum import SLOT_OF_TOKEN
from jaxinfer.serving.startup import memory
from jaxinfer.serving.startup.contexts import num_exchanging, sequences_on
from jaxinfer.startup_report import StartupReport

# Autotuning takes time and changes only the products' scratch memory, for which XLA otherwise
# assumes the maximum.
_UNTUNED = MappingProxyType({"xla_gpu_autotune_level": 0})

# Blocks that an engine for pooling may leave free, for programs that are traced sooner.
_MOST_SPARED_BLOCKS = 0.02


def plan_engine(
    params: Mapping[str, Any],
    model_config: ModelConfig,
    engine_config: EngineConfig,
    mesh: Mesh,
    rules: ShardingRules,
    *,
    logits_processor: LogitsProcessor | None = None,
    sampler: CustomSampler | None = None,
    fewest: Callable[[int], int] = int,
    lowering: Lowering | None = None,
    devices: Sequence[Any] | None = None,
    draft_head: HeadConfig | None = None,
    inspection: Inspection = NO_INSPECTION,
) -> EnginePlan:
    """Choose kernels and shapes and count the KV blocks; on a GPU this compiles some programs.

    Args:
        params: their description, from `describe_params`; they must be on the devices already:
            their memory there is measured.
        model_config: the model's shape.
        engine_config: the engine's arguments.
        mesh: the devices.
        rules: the sharding of the model over the devices.
        logits_processor: compiled into the sampler.
        sampler: replaces the draw; compiled into the sampler.
        fewest: maps this process's number of blocks to the least of all processes.
        lowering: shared with other replicas; None makes the engine's own.
        devices: all replicas' devices, which bound the blocks; the mesh's if None.
        draft_head: the head that drafts, whose parameters are among the others.
        inspection: what is read and changed of activations.

    Raises:
        CapacityError: the cache can't hold one full-length request, or has more blocks than kernels
            address; names what fits.
        ValueError: the attention backend asked for is impossible here, or JAX's precision is.
    """
    device, sampling_mesh = mesh.local_devices[0], stage_meshes(mesh)[-1]
    start = time.perf_counter()
    if engine_config.eager:
        check_eager(mesh)
    mark = memory_mark("weights loaded", mesh.local_devices)
    dtype = activation_dtype(params).name
    check_matmul_precision(mesh, dtype)
    backend, reason = choose_attention(model_config, engine_config, mesh, dtype)
    kernels = Kernels(backend)
    context = StepContext(
        model_config,
        sampling_mesh,
        rules,
        kernels,
        engine_config.block_tokens,
        dtype,
        have_peer_buffers(sampling_mesh, num_exchanging(mesh, rules), kernels)
        and reach_each_other(sampling_mesh),
        logits_processor,
        sampler,
        engine_config.count_logprobs(model_config.vocab_size),
        engine_config.logprobs_mode,
        engine_config.kv_cache_dtype,
        sequences=sequences_on(mesh, rules),
    )
    plain = _layer_loop(context, engine_config, draft_head)
    context = replace(context, loop=inspection.loop(plain, model_config, dtype, context.axis))
    # As few blocks as possible until their number is known: temporaries don't depend on it.
    samples = engine_config.runner == "generate"
    make = functools.partial(PipelinePrograms, devices=mesh) if num_stages(mesh) > 1 else Programs
    programs = make(context, params, 2, engine_config.max_num_seqs + 1, samples=samples)
    devices = mesh.local_devices if devices is None else devices
    max_model_len = _max_model_len(programs, engine_config, devices, fewest)
    programs = replace(programs, texts=_draft_texts(engine_config, max_model_len))
    weight_bytes = max(memory.bytes_per_device(stage.params) for stage in programs.stages)
    num_decode_steps, most_multi_step_rows = multi_step(
        *(params, model_config, engine_config, device.platform)
    )
    shapes = functools.partial(
        _shapes,
        engine_config,
        inspection,
        max_num_seqs=engine_config.max_num_seqs,
        max_num_batched_tokens=engine_config.token_budget(device.platform),
        block_size=engine_config.block_tokens,
        platform=device.platform,
        num_decode_steps=num_decode_steps,
        most_multi_step_rows=most_multi_step_rows,
        weight_bytes=weight_bytes,
        rows_in_item=_rows_in_item(programs),
        drafter=_drafter(context, engine_config, draft_head),
    )
    buckets = shapes(max_model_len=max_model_len)
    if lowering is None:
        keeps = keeps_executables(list(mesh.devices.flat))
        kind = Lowering if num_stages(mesh) == 1 else StagedLowering
        lowering = start_lowering(engine_config.compilation_cache_dir, keeps=keeps, kind=kind)
    compiler = functools.partial(_compiler, lowering=lowering, config=engine_config)
    first, counter = compiler(programs), CompilationCounter()
    try:
        blocks, probes = _most_blocks(programs, buckets, engine_config, devices, first, lowering)
        blocks = fewest(blocks)
        usable = usable_tokens(blocks, engine_config.block_tokens)
        if engine_config.max_model_len is None and usable < max_model_len:
            # Shorter sequences make no step larger, so that these blocks fit beside them.
            max_model_len = usable
            buckets = shapes(max_model_len=max_model_len)
        check_capacity(
            num_blocks=blocks,
            block_size=engine_config.block_tokens,
            max_model_len=max_model_len,
            remedy=inspection.remedy(
                _remedy(engine_config, device.platform, max_model_len), engine_config
            ),
        )
    except BaseException:
        first.close()
        lowering.close()
        counter.close()
        raise
    texts = _draft_texts(engine_config, max_model_len)
    programs = replace(programs, num_blocks=blocks, texts=texts, is_eager=engine_config.eager)
    report = StartupReport(
        num_kv_blocks=blocks,
        num_kv_tokens=usable,
        kv_bytes=programs.cache.block_bytes * blocks,
        max_model_len=max_model_len,
        max_context_length=model_config.max_context_length,
        is_cut=engine_config.max_model_len is None
        and max_model_len < model_config.max_context_length,
        full_length_concurrency=usable / max_model_len,
        attention_backend=backend,
        attention_reason=reason,
        platform=device.platform,
        num_devices=mesh.devices.size,
        weight_bytes=weight_bytes,
        step_bytes=memory.step_bytes(probes) if probes else None,
    )
    compiled = compiler(programs)
    if not engine_config.eager:
        compiled.adopt(first, _without_pages(buckets))
    seconds = time.perf_counter() - start
    return EnginePlan(
        device.platform,
        buckets,
        programs,
        compiled,
        lowering,
        counter,
        report,
        seconds,
        mark,
        slot_bytes=memory.bytes_per_device(
            (programs.last_tokens, programs.kept_slots, programs.draft_state)
        ),
        host_inputs=_host_inputs(programs),
    )


def _host_inputs(programs: Programs) -> HostInputs | StagedHostInputs:
    """Where steps read their batches from."""
    if isinstance(programs, PipelinePrograms):
        return StagedHostInputs(programs)
    return HostInputs(programs.on_host(()).sharding)


def _draft_texts(config: EngineConfig, max_model_len: int) -> DraftTextSizes | None:
    drafts = config.speculative_config
    if drafts is None:
        return None
    return DraftTextSizes(0 if drafts.model else max_model_len, drafts.corpus_size)


def _drafter(context: StepContext, config: EngineConfig, head: HeadConfig | None) -> Drafter | None:
    drafts = config.speculative_config
    if drafts is None:
        return None
    if head is None:
        is_suffix = drafts.method == "suffix"
        return LookupDrafter(
            drafts.num_drafts, drafts.longest, drafts.shortest, as_long_as_match=is_suffix
        )
    device, layer = context.mesh.local_devices[0], head.layer
    backend, _ = choose_backend(
        "xla" if context.kernels.backend == "xla" else "auto",
        head_dim=layer.head_dim,
        dtype=context.dtype,
        block_size=context.block_size,
        group_size=layer.num_attention_heads // layer.num_key_value_heads,
        platform=device.platform,
        compute_capability=compute_capability_of(device),
    )
    most = drafts.num_drafts if head.most_drafts is None else head.most_drafts
    return HEADS[drafts.method].drafter(min(drafts.num_drafts, most), head, Kernels(backend))


def _layer_loop(
    context: StepContext, config: EngineConfig, draft_head: HeadConfig | None
) -> LayerLoop:
    """What passes tokens through the layers, with what is kept beside."""
    loop: LayerLoop = EVERY_LAYER
    if config.enable_lora:  # excludes experts
        loop = AdaptedLayers(config.max_loras, config.max_lora_rank, context.kernels)
    drafts, experts = config.speculative_config, context.config.experts
    if config.expert_statistics and experts is not None:
        layers = experts.layers(context.config.num_hidden_layers)
        loop = CountedExperts(len(layers), experts.num_experts)
    if drafts is not None and draft_head is not None:
        loop = WatchedLayers(HEADS[drafts.method].pages(draft_head), loop)
    return loop


def _shapes(config: EngineConfig, inspection: Inspection, **sizes: Any) -> Buckets:
    buckets = inspection.buckets(choose_buckets(**sizes))
    if config.enable_lora:
        buckets = replace(buckets, extra=(SLOT_OF_TOKEN,))
    buckets = replace(buckets, has_tiers=config.kv_offloading_size > 0)
    if config.pipeline_parallel_size > 1:
        buckets = for_pipeline(buckets)
    return for_pooling(buckets, sizes["platform"]) if config.runner == "pooling" else buckets


def choose_attention(
    model_config: ModelConfig, engine_config: EngineConfig, mesh: Mesh, dtype: str
) -> tuple[Backend, str]:
    """The attention implementation for a model in `dtype` on these devices, and the reason.

    Raises:
        ValueError: the one asked for is impossible here; says why and lists what can run.
    """
    device = mesh.local_devices[0]
    wanted = engine_config.attention_backend
    backend, reason = choose_backend(
        "xla" if engine_config.eager and wanted == "auto" else wanted,
        head_dim=model_config.head_dim,
        dtype=dtype,
        block_size=engine_config.block_size,
        group_size=model_config.num_attention_heads // model_config.num_key_value_heads,
        platform=device.platform,
        compute_capability=compute_capability_of(device),
        kv_cache_dtype=engine_config.kv_cache_dtype,
    )
    if engine_config.context_parallel_size > 1 and backend not in BACKENDS:
        return "xla", f"{backend} can't attend over parts of a sequence"
    return backend, reason


def _rows_in_item(programs: Programs) -> int:
    if programs.context.kernels.backend != "mosaic":
        return 0
    if programs.context.rules.context is not None:
        return 0
    heads = min(layer.heads for layer in programs.cache.layers)
    return rows_in_item(programs.context.config.num_attention_heads // heads)


def multi_step(
    params: Any, model_config: ModelConfig, config: EngineConfig, platform: str
) -> tuple[int, int]:
    """Decode steps of a launch of few rows, and how many rows are few: a step must be short."""

    if config.pipeline_parallel_size > 1:
        return 1, 0

    def steps(rows: int) -> int:
        read = memory.bytes_read_by_rows(params, model_config.experts, rows)
        return config.decode_steps(platform, read, model_config.num_hidden_layers)

    short = [rows for rows in range(1, MULTI_STEP_ROWS + 1) if steps(rows) > 1]
    return steps(1), max(short, default=0)


def _max_model_len(
    programs: Programs,
    config: EngineConfig,
    devices: Sequence[Any],
    fewest: Callable[[int], int],
) -> int:
    """Most tokens of a sequence: as asked for, or the model's limit, or the longest that fits."""
    if config.max_model_len is not None:
        return config.max_model_len
    longest = programs.context.config.max_context_length
    if config.num_kv_blocks is not None:
        return min(longest, (config.num_kv_blocks - 1) * config.block_tokens)
    if devices[0].platform != "cpu":
        return longest
    block_bytes = programs.cache.block_bytes * len(devices)
    fits = memory.longest_on_cpu(block_bytes=block_bytes, block_size=config.block_tokens)
    return min(longest, max(fewest(fits), config.block_tokens))


def _remedy(config: EngineConfig, platform: str, max_model_len: int) -> str:
    """The remedy that lets a longer sequence fit."""
    blocks = -(-max_model_len // config.block_tokens) + 1
    if config.num_kv_blocks is not None:
        return f"raise num_kv_blocks to {blocks}"
    if platform == "cpu":
        return (
            "free memory (the KV cache takes up to a quarter of what is available), or set "
            f"num_kv_blocks={blocks} to take what that needs"
        )
    return "raise gpu_memory_utilization"


def _most_blocks(
    programs: Programs,
    buckets: Buckets,
    config: EngineConfig,
    devices: Sequence[Any],
    compiled: CompiledPrograms[ProgramKey],
    lowering: Lowering,
) -> tuple[int, list[jax.stages.Compiled]]:
    """The number of blocks that fit every stage, and the programs that told it."""
    if len(programs.stages) == 1 or devices[0].platform == "cpu":
        return _count_blocks(programs, buckets, config, devices, compiled, lowering)
    found = []
    for stage in programs.stages:
        own = stage.mesh.local_devices
        found.append(_count_blocks(stage, buckets, config, own, compiled, lowering))
    return min(blocks for blocks, _ in found), [each for _, probes in found for each in probes]


def _count_blocks(
    programs: Programs,
    buckets: Buckets,
    config: EngineConfig,
    devices: Sequence[Any],
    compiled: CompiledPrograms[ProgramKey],
    lowering: Lowering,
) -> tuple[int, list[jax.stages.Compiled]]:
    """The number of blocks, and the programs that were compiled to find it.

    If all programs are to be compiled ahead, those that don't depend on that number are traced
    meanwhile, but not compiled, so as not to delay these few. An engine for pooling has none of
    these: its programs are traced for the number that is expected, which it then takes if it may.
    """
    most = programs.cache.most_blocks
    if config.num_kv_blocks is not None:
        if config.num_kv_blocks > most:
            raise CapacityError(
                f"num_kv_blocks={config.num_kv_blocks} is more than kernels can address; set it to "
                f"at most {most}"
            )
        return config.num_kv_blocks, []
    block_bytes = programs.cache.block_bytes
    if devices[0].platform == "cpu":
        blocks = memory.blocks_on_cpu(
            block_bytes=block_bytes * len(devices),
            blocks_per_seq=buckets.widths[-1],
            max_num_seqs=config.max_num_seqs,
        )
        return min(blocks, most), []
    utilization = config.gpu_memory_utilization
    free_bytes = memory.free_bytes(devices, utilization=utilization)
    if config.kv_offloading_size:
        budget = config.token_budget(devices[0].platform)
        free_bytes -= block_bytes * blocks_beside_pages(budget, config.block_tokens)
    tallies = [entry for entry in programs.kv if isinstance(entry, Tally)]
    free_bytes -= memory.bytes_per_device((programs.started_later, tallies))
    largest = largest_programs(buckets, programs.context.kernels)
    steps = [key for key in largest if uses_pages(key)]
    others = [key for key in largest if not uses_pages(key) and programs.samples]
    # A layer's temporaries are free before the one after the next takes its own, so that two of a
    # kind stand for all: on an H200, with Mosaic's kernels, the largest step of two layers of each
    # kind and that of the whole model differ by 2.6 KB a layer. One of each kind is too little: 336
    # MB for 347 of Qwen3-0.6B, 1,208 for 1,219 of Qwen3-8B, and 1,095 for 1,103 of SmolLM3-3B,
    # which holds both rotations only while a layer of each kind is to come; with XLA's attention
    # 1,283 for 1,442. Nor is it faster: a layer takes 0.03 s to compile.
    shallow = programs.with_layers(programs.context.loop.num_probed)
    expected = 0 if buckets.generates else _expected_blocks(programs, config, free_bytes)
    probes = _compiler(shallow, lowering=lowering, config=config, options=_UNTUNED)
    with contextlib.closing(probes):
        if config.compiles_ahead(devices[0].platform):
            lowering.prepare(shallow, steps[0])
            lowering.trace(programs, [k for k in _without_pages(buckets) if k not in others])
            if expected:
                keys = all_programs(buckets, swaps=False)
                lowering.trace(replace(programs, num_blocks=expected), keys)
        probes.begin(steps)
        compiled.begin(others)
        probes.compile(steps, show_progress=False)
        compiled.compile(others, show_progress=False)
        found = [probes[key] for key in steps] + [compiled[key] for key in others]
    blocks = blocks_on_devices(
        free_bytes,
        block_bytes=block_bytes,
        step_bytes=memory.step_bytes(found),
        utilization=utilization,
    )
    if (1 - _MOST_SPARED_BLOCKS) * blocks <= expected <= blocks:
        blocks = expected
    return min(blocks, most), found


def _expected_blocks(programs: Programs, config: EngineConfig, free_bytes: int) -> int:
    """The number of blocks beside an estimate of the largest prefill; 0 if none fit."""
    context = programs.context
    tokens = config.token_budget(context.mesh.devices.flat[0].platform)
    step_bytes = prefill_bytes(
        shape_of(context.config), context.dtype, tokens=tokens, devices=context.num_devices
    )
    try:
        blocks = blocks_on_devices(
            free_bytes,
            block_bytes=programs.cache.block_bytes,
            step_bytes=step_bytes,
            utilization=config.gpu_memory_utilization,
        )
    except CapacityError:
        return 0
    return min(blocks, programs.cache.most_blocks)


def _without_pages(buckets: Buckets) -> list[ProgramKey]:
    """Programs whose shapes do not depend on the number of KV blocks."""
    return [key for key in all_programs(buckets, swaps=False) if not uses_pages(key)]


def _compiler(
    programs: Programs,
    *,
    lowering: Lowering,
    config: EngineConfig,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> CompiledPrograms[ProgramKey]:
    if programs.is_eager:
        return CompiledPrograms(
            lambda key, _: EagerProgram(program_of(programs, key)), lambda key: {}
        )
    context = programs.context
    platform = context.mesh.devices.flat[0].platform

    def options_for(key: ProgramKey) -> dict[str, Any]:
        own = options_of(
            key,
            platform=platform,
            num_devices=context.num_devices,
        )
        return own | dict(options)

    caching = functools.partial(persistent_cache, config.compilation_cache_dir)
    if lowering.executables is not None:
        caching = lowering.executables.written_in_background
    lower = functools.partial(lowering.lower, programs)
    return CompiledPrograms(lower, options_for, caching, says_so=config.show_progress)
