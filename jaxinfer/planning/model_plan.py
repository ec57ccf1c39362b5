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
from jaxinfer.planning.drafts import draft_memory
from jaxinfer.planning.memory import MemoryPlan, plan_memory
from jaxinfer.planning.model_files import read_shape
from jaxinfer.planning.notes import notes
from jaxinfer.planning.operations import (
    Operation,
    active_parameters,
    count_parameters,
    operations,
)
from jaxinfer.planning.remedies import remedies
from jaxinfer.planning.replicas import Replicas
from jaxinfer.planning.shapes import BYTES_OF, ModelShape, check_contexts, expert_groups
from jaxinfer.planning.times import Time, Timing

DEFAULT_CONTEXT = 2048
DEFAULT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DTYPES = ("bfloat16", "float16")
_MOST_TOKENS = 1 << 24
_MOST_SEQUENCES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """A number of sequences that run at once, each with the plan's context.

    Attributes:
        sequences: B, over all replicas.
        fits: whether the KV caches hold them all at once; otherwise some wait.
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
        pipeline_parallel_size: stages, each on `tensor_parallel_size` devices.
        context_parallel_size: groups of `tensor_parallel_size` devices, which tokens are dealt to.
        replicas: of the model, each on devices of its own.
        expert_groups: groups of a replica's devices that have whole experts; 1 where all devices
            share each expert.
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
    replicas: Replicas
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

    def sequences(self, context: int) -> int:
        """Sequences of `context` tokens that fit at once, in all replicas."""
        return self.memory.sequences(context) * self.replicas.num_decoding

    def longest(self, num_seqs: int) -> int:
        """Tokens that each of `num_seqs` sequences may have at once, up to the model's limit."""
        return self.memory.longest(self.replicas.rows(num_seqs))

    def to_dict(self) -> dict[str, Any]:
        """JSON-like values: the attributes, and values that follow from them."""
        values = dataclasses.asdict(self)
        values["fits"] = self.fits
        values["memory"] |= {
            "kv_bytes": self.memory.kv_bytes,
            "num_kv_tokens": self.memory.num_kv_tokens,
            "sequences": self.sequences(self.context),
        }
        for batch, row in zip(self.batches, values["batches"], strict=True):
            row["tokens_per_s"] = batch.tokens_per_s
            row["longest_context"] = self.longest(batch.sequences)
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
            out), `max_num_batched_tokens`, `block_size`, `gpu_memory_utilization`; `hf_overrides`;
            `quantization`; `kv_cache_dtype`; `pipeline_parallel_size`; `context_parallel_size`;
            `data_parallel_size` and `prefill_replicas`, over which batches are spread evenly;
            `kv_offloading_size`; `enable_expert_parallel`, `expert_parallel_size`, `enable_eplb`
            and `eplb_config`; `enable_lora`, `max_loras` and `max_lora_rank`; `runner`, which is
            "pooling" for a classifier; and `speculative_config`, whose draft head is a directory,
            "bundled", or a hub id that is in the local cache.

    Returns:
        The plan. One that does not fit is a plan, too: see `Plan.fits` and `Plan.remedies`.

    Raises:
        ModelLoadError: there is no such model or draft head here, its config.json can't be
            counted, or the head is for another model.
        ValueError: a size is out of range, the model does not split over the devices, or it is a
            classifier, and something is asked for that generates.
    """
    name, shape = read_shape(model, engine.get("hf_overrides"))
    chip = find_device(device)
    dtype = _dtype(dtype, shape)
    context = _context(context, shape)
    if batches is not None:
        for rows in batches:
            check_integer("a batch", rows, 1, _MOST_SEQUENCES)
    if shape.num_classes:
        engine = _for_classifier(engine)
    config = EngineConfig(tensor_parallel_size=tensor_parallel_size, **engine)
    replicas = Replicas.of(config)
    most = max(batches or DEFAULT_BATCHES[-1:])
    if "max_num_seqs" not in engine:
        size = max(config.max_num_seqs, replicas.rows(most))
        config = dataclasses.replace(config, max_num_seqs=size)
    elif batches is not None and replicas.rows(most) > config.max_num_seqs:
        raise ValueError(
            f"a batch of {most} is more than max_num_seqs={config.max_num_seqs}, which is the "
            "most that a replica runs at once; raise max_num_seqs or take a smaller batch"
        )
    if config.quantization is not None:
        shape = with_scheme(shape, config.quantization)
    check_contexts(shape, config)
    groups = expert_groups(shape, config)
    check_divisible(shape, config.tensor_parallel_size, groups)
    drafts = draft_memory(shape, dtype, config)
    memory = plan_memory(shape, chip, dtype, config, drafts)
    if batches is None:
        fit = memory.sequences(context) * replicas.num_decoding
        batches = [rows for rows in DEFAULT_BATCHES if rows <= fit] or [1]
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
        replicas=replicas,
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
                fits=replicas.rows(rows) <= memory.sequences(context),
                context=context,
                ttft=timing.prefill(replicas.prompts(rows), context),
                tpot=None if pools else timing.decode_step(replicas.rows(rows), context),
            )
            for rows in batches
        ),
        remedies=remedies(shape, chip, dtype, config, drafts, rows=max(batches), context=context),
        notes=notes(timing, dtype, drafts, replicas),
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


def _dtype(dtype: str, shape: ModelShape) -> str:
    chosen = shape.dtype if dtype == "auto" else dtype
    if chosen not in DTYPES:
        raise ValueError(
            f"dtype {chosen} can't be planned: speeds are known for {' and '.join(DTYPES)}; give "
            "one of them as dtype"
        )
    return chosen


def _context(context: int | None, shape: ModelShape) -> int:
    limit = shape.max_context_length
    if context is None:
        return min(DEFAULT_CONTEXT, limit)
    if check_integer("context", context, 1, _MOST_TOKENS) > limit:
        raise ValueError(
            f"context must be at most the model's {limit} tokens, got {context}; lower it, or "
            "extend the model by YaRN (rope_scaling in hf_overrides)"
        )
    return context
