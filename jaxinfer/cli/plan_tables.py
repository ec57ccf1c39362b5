"""Prints plans as tables: parts of the model, memory, times by batch, several plans compared."""

import textwrap
from collections.abc import Iterator, Sequence

from jaxinfer.planning import MemoryPlan, Plan
from jaxinfer.planning.times import Time
from jaxinfer.profiling.figures import aligned, share_text

_GIB = 2**30
_WIDTH = 96
_SLOTS = "token counts, for penalties"
_DRAFTS = "tokens that they are made from, for the longest context"
_ADAPTERS = "slots of LoRA adapters, full or not"
_CONTEXTS = (1024, 4096, 16_384, 32_768, 131_072)


def plan_lines(plan: Plan) -> list[str]:
    """One plan in full."""
    parts = [_parts(plan), _memory(plan), _batches(plan), _capacity(plan), _remarks(plan)]
    return [_title(plan), *(line for part in parts for line in ("", *part))]


def comparison_lines(plans: Sequence[Plan]) -> list[str]:
    """A line for each plan: sequences that fit, the smallest batch, and the largest that fits."""
    head = ("model", "device", "context", "weights", "KV tokens", "fit", "TTFT", "TPOT", "batch")
    legend = (
        "weights: GiB of each device. fit: sequences at once. TTFT, TPOT: milliseconds of the "
        "smallest batch. tok/s: of the largest batch that fits. Expected values, or floors (*) "
        "where nothing else is known."
    )
    if any(plan.runner == "pooling" for plan in plans):
        legend += " Without TPOT nothing is generated: tok/s are of prompts."
    to_fit = [
        f"  {plan.model}, {plan.chip.name}: {each}" for plan in plans for each in plan.remedies
    ]
    return [
        *aligned([(*head, "tok/s"), *map(_comparison_row, plans)], left=2),
        "",
        *_wrapped(legend),
        *(["", "To fit, any of:", *to_fit] if to_fit else []),
    ]


def _comparison_row(plan: Plan) -> tuple[str, ...]:
    memory, mark = plan.memory, "" if _is_expected(plan) else "*"
    row = (
        plan.model,
        _devices(plan),
        f"{plan.context:,}",
        _gib(memory.weight_bytes),
        f"{memory.num_kv_tokens:,}",
        f"{plan.sequences(plan.context):,}",
    )
    fitting = [batch for batch in plan.batches if batch.fits]
    if not fitting:
        return (*row, "-", "-", "-", "-")
    first, last = fitting[0], fitting[-1]
    return (
        *row,
        _milliseconds(_shown(first.ttft)) + mark,
        "-" if first.tpot is None else _milliseconds(_shown(first.tpot)) + mark,
        f"{last.sequences:,}",
        f"{last.tokens_per_s:,.0f}{mark}",
    )


def _title(plan: Plan) -> str:
    size = f"{plan.parameters / 1e9:.2f} billion parameters"
    if plan.active_parameters != plan.parameters:
        size += f", {plan.active_parameters / 1e9:.2f} billion for each token"
    form = plan.shape.quantization
    weights = "" if form is None else f" with {form.codes} weights"
    cache = "" if plan.kv_cache_dtype == "auto" else f" with {plan.kv_cache_dtype} KV cache"
    return (
        f"{plan.model} ({size})\nin {plan.dtype}{weights}{cache} on {_devices(plan)}, "
        f"{plan.context:,} tokens a sequence"
    )


def _devices(plan: Plan) -> str:
    count = plan.tensor_parallel_size * plan.context_parallel_size
    name = plan.chip.name if count == 1 else f"{count} x {plan.chip.name}"
    if plan.pipeline_parallel_size > 1:
        name = f"{plan.pipeline_parallel_size} stages of {name}"
    if plan.context_parallel_size > 1:
        name = f"{name}, tokens dealt to {plan.context_parallel_size}"
    if plan.expert_groups > 1:
        name = f"{name}, experts in {plan.expert_groups} groups"
    return name if plan.replicas.count == 1 else f"{plan.replicas.count} replicas of {name}"


def _parts(plan: Plan) -> Iterator[str]:
    head = ("part", "parameters", "MFLOP/token", "MB/token", "formula (parameters)")
    rows = [
        (
            part.name,
            f"{part.parameters:,}",
            f"{part.flops_per_token / 1e6:,.1f}",
            f"{part.bytes_per_token / 1e6:,.1f}",
            part.formula,
        )
        for part in plan.operations
    ]
    total = (
        "all",
        f"{plan.parameters:,}",
        f"{sum(part.flops_per_token for part in plan.operations) / 1e6:,.1f}",
        f"{sum(part.bytes_per_token for part in plan.operations) / 1e6:,.1f}",
        ("a token" if plan.runner == "pooling" else "a token decoded alone")
        + ", on all devices together",
    )
    yield from aligned([head, *rows, total], last_left=True)
    yield ""
    each = "2 bytes" if plan.shape.quantization is None else "its codes and scales, or 2 bytes,"
    yield f"A product takes 2 operations and reads {each} for each parameter that a token meets;"
    yield "attention reads the keys and values of all tokens of the context."


def _memory(plan: Plan) -> Iterator[str]:
    memory = plan.memory
    blocks = (
        f"{memory.num_kv_blocks:,} blocks of {memory.block_size}: {memory.num_kv_tokens:,} tokens "
        f"of {memory.kv_bytes_per_token + memory.draft_bytes_per_token:,} bytes"
    )
    rows = [
        ("device", _gib(memory.device_bytes), ""),
        ("engine may take", _gib(memory.engine_bytes), ""),
        ("weights", _gib(memory.weight_bytes), ""),
        ("largest step", _gib(memory.step_bytes), "an estimate; the engine compiles it to know"),
        *([("slots", _gib(memory.slot_bytes), _SLOTS)] if memory.slot_bytes else []),
        *_draft_rows(memory),
        *([("adapters", _gib(memory.adapter_bytes), _ADAPTERS)] if memory.adapter_bytes else []),
        *([("tiers", _gib(memory.staged_bytes), _staged(memory))] if memory.staged_bytes else []),
        ("KV cache", _gib(memory.kv_bytes), blocks if memory.num_kv_blocks else "no room"),
    ]
    title = "of the fullest stage's devices" if memory.stages else "of each device"
    yield from aligned([(f"memory {title}", "GiB", ""), *rows], last_left=True)
    yield ""
    if memory.stages:
        yield from _stages(memory)
        yield ""
    yield _kv_formula(plan)
    if memory.draft_bytes_per_token:
        size = f"{memory.draft_bytes_per_token:,} bytes"
        yield f"what a draft head reads of a token: {size}, whole on each device"


def _stages(memory: MemoryPlan) -> Iterator[str]:
    head = ("stage", "layers", "weights GiB", "largest step", "slots", "KV cache")
    rows = [
        (
            f"{i}",
            f"{each.first_layer}-{each.first_layer + each.num_layers - 1}",
            _gib(each.weight_bytes),
            _gib(each.step_bytes),
            _gib(each.slot_bytes),
            _gib(each.kv_bytes),
        )
        for i, each in enumerate(memory.stages)
    ]
    yield from aligned([head, *rows], left=0)


def _staged(memory: MemoryPlan) -> str:
    return f"blocks on their way; host memory keeps {memory.num_host_tokens:,} tokens more"


def _draft_rows(memory: MemoryPlan) -> list[tuple[str, str, str]]:
    if memory.draft_head_bytes:
        return [("draft head", _gib(memory.draft_head_bytes), "whole on each device")]
    return [("drafts", _gib(memory.draft_bytes), _DRAFTS)] if memory.draft_bytes else []


def _kv_formula(plan: Plan) -> str:
    shape, size = plan.shape, plan.memory.kv_bytes_per_token
    layers, dim = shape.num_hidden_layers, shape.head_dim
    if plan.memory.stages:
        fewest = min(plan.memory.stages, key=lambda stage: stage.num_kv_blocks)
        layers = fewest.num_layers
    heads = shape.kv_heads_of_device(plan.tensor_parallel_size)
    each = "2 bytes" if plan.kv_cache_dtype == "auto" else "a byte"
    values = f"2·L·K·D = 2·{layers}·{heads}·{dim} values of {each}"
    if plan.kv_cache_dtype == "int8":
        values = f"2·L·K·(D+4) = 2·{layers}·{heads}·({dim}+4) values of a byte and scales of 4"
    if plan.context_parallel_size > 1:
        values = f"({values}) / {plan.context_parallel_size}"
    return f"a token's keys and values: {values} = {size:,} bytes of each device"


def _batches(plan: Plan) -> Iterator[str]:
    expected = _is_expected(plan)
    head = ["batch", "TTFT ms: floor", "expected", "MFU", "TPOT ms: floor", "expected", "MBU"]
    if plan.runner == "pooling":
        head = ["batch", "ms: floor", "expected", "MFU"]
    rows = []
    for batch in plan.batches:
        row = [f"{batch.sequences}"]
        for time in (batch.ttft, batch.tpot):
            if time is None:
                continue
            row += [_milliseconds(time.floor_s)]
            row += [_milliseconds(time.expected_s) if time.expected_s is not None else "-"]
            row += [share_text(time.utilization) if expected else "-"]
        row += [f"{batch.tokens_per_s:,.0f}" if batch.fits else "does not fit"]
        rows.append(tuple(row))
    tokens = "prompt tok/s" if plan.runner == "pooling" else "tok/s"
    head.append(tokens if expected else f"{tokens} at most")
    yield from aligned([tuple(head), *rows], left=0)


def _capacity(plan: Plan) -> Iterator[str]:
    """A table of sequences that fit by length, and of the longest length by number of sequences."""
    limit = plan.shape.max_context_length
    contexts = sorted({plan.context, limit, *(each for each in _CONTEXTS if each < limit)})
    fitting = [(f"{length:,}", f"{plan.sequences(length):,}") for length in contexts]
    yield from aligned([("context", "sequences that fit"), *fitting], left=0)
    yield ""
    rows = [batch.sequences for batch in plan.batches]
    longest = [(f"{count:,}", f"{plan.longest(count):,}") for count in rows]
    yield from aligned([("sequences", "longest context"), *longest], left=0)


def _remarks(plan: Plan) -> Iterator[str]:
    if plan.remedies:
        most = max(batch.sequences for batch in plan.batches)
        wanted = "1 sequence" if most == 1 else f"{most:,} sequences"
        yield f"Does not fit: {wanted} of {plan.context:,} tokens. Any of these does:"
        yield from (f"  {remedy}" for remedy in plan.remedies)
    for note in plan.notes:
        yield from _wrapped(note)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH)


def _is_expected(plan: Plan) -> bool:
    return plan.batches[0].ttft.expected_s is not None


def _shown(time: Time) -> float:
    return time.floor_s if time.expected_s is None else time.expected_s


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f}"


def _milliseconds(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
