"""The plan of a model on a device: its memory, the sequences that fit, and its speed."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxinfer.checks import check_integer
from jaxinfer.config import EngineConfig, KVCacheDType, RunnerType
from jaxinfer.model.degrees import check_divisible
from jaxinfer.model.quantized.quantization import with_scheme
from jaxinfer.planning.devices import Chip, find_device
from jaxinfer.planning.drafts import DraftMemory, draft_memory
from jaxinfer.planning.memory import MemoryPlan, plan_memory
from jaxinfer.planning.model_files import read_shape
from jaxinfer.planning.operations import (
    Operation,
    active_parameters,
    count_parameters,
    operations,
)
from jaxinfer.planning.remedies import remedies
from jaxinfer.planning.shapes import BYTES_OF, ModelShape, expert_groups
from jaxinfer.planning.times import Time, Timing, recorded_overheads

DEFAULT_CONTEXT = 2048
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DTYPES = ("bfloat16", "float16")
_DRAFTS = (
    "Times are those without drafts: a step with some takes a little longer, and gives a token and "
    "as many more as were guessed right."
)
_POOLS = (
    "An engine for pooling generates nothing: times are until the last of a batch's prompts is "
    "read, and tokens a second are those of prompts."
)
_MOST_TOKENS = 1 << 24
_MOST_SEQUENCES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """A number of sequences that run at once, each with the plan's context.

    Attributes:
        sequences: B.
        fits: whether the KV cache holds them all at once; otherwise some wait.
        context: tokens of each.
        ttft: time until the last of B prompts that arrive together has its first token or, of an
            engine for pooling, is read.
        tpot: a decode step: the time between two tokens of each; None of an engine for pooling.
    """

    sequences: int
    fits: bool
    context: int
    ttft: Time
    tpot: Time | None

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all sequences: as expected, or at most if that is unknown.

        They are output tokens or, of an engine for pooling, tokens of prompts.
        """
        if self.tpot is None:
            return self.sequences * self.context / (self.ttft.expected_s or self.ttft.floor_s)
        return self.sequences / (self.tpot.expected_s or self.tpot.floor_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of one model on one kind of device.

    Attributes:
        model: as the user named it.
        shape: its sizes.
        chip: each device.
        tensor_parallel_size: devices that share the model, or each stage of it.
        pipeline_parallel_size: stages, each on so many devices.
        context_parallel_size: groups of so many devices, which tokens are dealt to.
        expert_groups: of these devices, that have whole experts; 1 where all share each of them.
        dtype: of activations, and of weights that are not quantized.
        kv_cache_dtype: of keys and values: "auto" is `dtype`.
        runner: what the engine is for; "pooling" of a classifier.
        context: tokens of each sequence: of its prompt for TTFT, or read by a decode step.
        parameters: number of the model's parameters.
        active_parameters: parameters that one token uses.
        operations: parameters, operations and bytes by part.
        memory: of each device.
        batches: times by number of sequences.
        remedies: changes that let the largest batch fit; empty if it does.
        notes: remarks for readers of the numbers.
    """

    model: str
    shape: ModelShape
    chip: Chip
    tensor_parallel_size: int
    pipeline_parallel_size: int
    context_parallel_size: int
    expert_groups: int
    dtype: str
    kv_cache_dtype: KVCacheDType
    runner: RunnerType
    context: int
    parameters: int
    active_parameters: int
    operations: tuple[Operation, ...]
    memory: MemoryPlan
    batches: tuple[BatchPlan, ...]
    remedies: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """True if every batch fits."""
        return not self.remedies

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values: the attributes, and values that follow from them."""
        values = dataclasses.asdict(self)
        values["fits"] = self.fits
        values["memory"] |= {
            "kv_bytes": self.memory.kv_bytes,
            "num_kv_tokens": self.memory.num_kv_tokens,
            "sequences": self.memory.sequences(self.context),
        }
        for batch, row in zip(self.batches, values["batches"], strict=True):
            row["tokens_per_s"] = batch.tokens_per_s
            row["longest_context"] = self.memory.longest(batch.sequences)
        return values


def plan(
    model: str | Path,
    device: str = "h200",
    *,
    tensor_parallel_size: int = 1,
    dtype: str = "auto",
    context: int | None = None,
    batches: Sequence[int] | None = None,
    **engine: Any,
) -> Plan:
    """Estimate a model's memory and speed on a device; nothing is loaded, downloaded or compiled.

    Args:
        model: a directory with config.json, a published name ("Qwen3-8B"), a hub id that is in the
            local cache, or the name of a bundled model.
        device: a name of `jaxinfer.planning.DEVICES`, or "MEMORY_GIB:GB_PER_S:TFLOPS".
        tensor_parallel_size: devices that share the model.
        dtype: of weights and activations: "bfloat16", "float16", or "auto" for the model's own.
        context: tokens of each sequence; None is 2,048, or the model's limit if that is less.
        batches: numbers of sequences to plan for; None takes powers of 2 up to 256 that fit.
        engine: sizes of `EngineConfig`: `max_num_seqs` (at least the largest batch if it is left
            out), `max_num_batched_tokens`, `block_size`, `gpu_memory_utilization`;
            `quantization`; `kv_cache_dtype`; `pipeline_parallel_size`; `context_parallel_size`;
            `enable_expert_parallel` and `expert_parallel_size`; `runner`, which
            is "pooling" for a classifier; and `speculative_config`, whose draft head is a
            directory, "bundled", or a hub id that is in the local cache.

    Returns:
        The plan. One that does not fit is a plan, too: see `Plan.fits` and `Plan.remedies`.

    Raises:
        ModelLoadError: there is no such model or draft head here, its config.json can't be
            counted, or the head is for another model.
        ValueError: a size is out of range, the model does not split over the devices, or it is a
            classifier, and something is asked for that generates.
    """
    name, shape = read_shape(model)
    chip = find_device(device)
    dtype = _dtype(dtype, shape)
    context = _context(context, shape)
    if batches is not None:
        for rows in batches:
            check_integer("a batch", rows, 1, _MOST_SEQUENCES)
    most = max(batches or DEFAULT_BATCHES[-1:])
    # Defaults and limits are the engine's own.
    if batches is not None and most > engine.get("max_num_seqs", most):
        raise ValueError(
            f"a batch of {most} is more than max_num_seqs={engine['max_num_seqs']}, which is the "
            "most that an engine runs at once; raise max_num_seqs or take a smaller batch"
        )
    engine = {"max_num_seqs": max(EngineConfig.max_num_seqs, most)} | engine
    if shape.num_classes:
        engine = _for_classifier(engine)
    config = EngineConfig(tensor_parallel_size=tensor_parallel_size, **engine)
    if config.quantization is not None:
        shape = _quantized(shape, config.quantization)
    if config.context_parallel_size > 1 and shape.num_experts:
        raise ValueError(
            "context_parallel_size does not go with a model with experts; leave it out"
        )
    groups = expert_groups(shape, config)
    check_divisible(shape, config.tensor_parallel_size, groups)
    drafts = draft_memory(shape, dtype, config)
    memory = plan_memory(shape, chip, dtype, config, drafts)
    if batches is None:
        batches = [rows for rows in DEFAULT_BATCHES if rows <= memory.sequences(context)] or [1]
    pools = config.runner == "pooling"
    timing = Timing(
        shape,
        chip,
        config.tensor_parallel_size,
        BYTES_OF[dtype],
        config.kv_cache_dtype,
        pools,
        groups,
        config.pipeline_parallel_size,
        config.token_budget("gpu"),
        config.context_parallel_size,
    )
    return Plan(
        model=name,
        shape=shape,
        chip=chip,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_groups=groups,
        dtype=dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        runner=config.runner,
        context=context,
        parameters=count_parameters(shape),
        active_parameters=active_parameters(shape),
        operations=operations(shape, dtype, context, config.kv_cache_dtype, pools=pools),
        memory=memory,
        batches=tuple(
            BatchPlan(
                sequences=rows,
                fits=rows <= memory.sequences(context),
                context=context,
                ttft=timing.prefill(rows, context),
                tpot=None if pools else timing.decode_step(rows, context),
            )
            for rows in batches
        ),
        remedies=remedies(shape, chip, dtype, config, drafts, rows=max(batches), context=context),
        notes=(*_notes(timing, dtype), *_draft_notes(drafts, chip), *_stage_notes(timing)),
    )


def _for_classifier(engine: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the engine that runs a classifier.

    Raises:
        ValueError: they ask for one that generates.
    """
    if engine.get("runner", "pooling") != "pooling":
        raise ValueError(
            "runner='generate': the model has a classifying head and can't generate; leave runner "
            "out, or write runner='pooling'"
        )
    if engine.get("speculative_config") is not None:
        raise ValueError(
            "speculative_config drafts answers, and a model with a classifying head gives none; "
            "leave it out"
        )
    return engine | {"runner": "pooling"}


def _quantized(shape: ModelShape, scheme: str) -> ModelShape:
    if shape.num_experts:
        raise ValueError(
            f"quantization={scheme!r}: models with experts can be planned with 16-bit weights only"
        )
    return with_scheme(shape, scheme)


def _dtype(dtype: str, shape: ModelShape) -> str:
    chosen = shape.dtype if dtype == "auto" else dtype
    if chosen not in DTYPES:
        raise ValueError(
            f"dtype {chosen} can't be planned: speeds are known for {' and '.join(DTYPES)}; give "
            "one of them as dtype"
        )
    return chosen


def _context(context: int | None, shape: ModelShape) -> int:
    limit = shape.max_position_embeddings
    if context is None:
        return min(DEFAULT_CONTEXT, limit)
    if check_integer("context", context, 1, _MOST_TOKENS) > limit:
        raise ValueError(f"context must be at most the model's {limit} tokens, got {context}")
    return context


_HOPPER = ("H100", "H200")


def _notes(timing: Timing, dtype: str) -> list[str]:
    shape, chip = timing.shape, timing.chip
    notes = []
    if shape.num_experts:
        notes.append(
            "No expected times: there are no kernels for experts yet, and XLA takes one expert "
            "after the other, which on a GPU is far from these floors."
        )
    elif not shape.is_measured:
        notes.append(f"No expected times: no run of a {shape.model_type} model was recorded.")
    elif shape.quantization is not None:
        notes.append(
            f"No expected times: XLA multiplies {shape.quantization.codes} weights, which was not "
            "measured and, on a GPU, writes and reads each as a plain one: far from these floors."
        )
    elif timing.num_contexts > 1:
        notes.append(
            "No expected times: context parallelism was never measured. Floors leave out what "
            "devices exchange."
        )
    elif timing.kv_cache_dtype == "fp8_e4m3" and chip.name.startswith(_HOPPER):
        notes.append("No expected times: no run with an fp8_e4m3 KV cache was recorded.")
    elif timing.kv_cache_dtype != "auto":
        notes.append(
            f"No expected times: on a GPU an {timing.kv_cache_dtype} KV cache is read by XLA's "
            "attention alone, which was not measured and is far from these floors."
        )
    elif timing.num_stages > 1:
        notes.append("No expected times: no pipeline was measured.")
    elif not timing.is_expected:
        notes.append("No expected times: sums over GPUs without NVLink were never measured.")
    else:
        notes.append(
            "Expected times are fitted to recorded H200 runs, with a largest error of "
            f"{recorded_overheads().worst:.0%}; TTFT is that of prompts that find the engine idle."
        )
    if timing.pools:
        notes.append(_POOLS)
    if shape.num_classes:
        notes.append(
            f"The classifying head lies on the host, in float32: {shape.num_classes} "
            f"class{'es' if shape.num_classes > 1 else ''}."
        )
    if not chip.measured:
        notes.append(
            f"{chip.name}: floors from its data sheet; nothing was measured on this device."
        )
    if dtype == "bfloat16" and not chip.has_bfloat16:
        notes.append(f"{chip.name} has no bfloat16: take float16.")
    if shape.num_experts:
        notes.append("Experts are taken as equally likely; skewed routing reads fewer.")
    if timing.num_groups > 1:
        notes.append(
            f"Experts lie whole in {timing.num_groups} groups of devices; floors are those of the "
            "group of which most experts are chosen."
        )
    return notes


def _stage_notes(timing: Timing) -> list[str]:
    if timing.num_stages == 1:
        return []
    return [
        f"Each of {timing.num_stages} stages has a share of the sequences at a time: a token takes "
        "as long as on the devices of one stage, and TPOT is that of so many fewer sequences there."
    ]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _draft_notes(drafts: DraftMemory, chip: Chip) -> list[str]:
    notes = [_DRAFTS] if drafts.num_drafts else []
    if drafts.weight_bytes:
        once_ms = drafts.weight_bytes / chip.bytes_per_s * 1e3
        notes.append(
            f"The draft head is whole on every device; reading it takes at least {once_ms:.2g} ms, "
            f"{_times(drafts.num_passes)} in a step with {drafts.num_drafts} drafts of each "
            "sequence."
        )
    return notes
