"""Measures workload W1 with LoRA adapters, and how long an adapter's arrays take to a step."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxinfer.measure.random_weights import build_engine
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.projections import HEAD, PROJECTIONS, projection_shapes
from scripts.speed.device_time import device_time
from scripts.speed.engine_report import heading
from scripts.speed.report import engine_record
from scripts.speed.timing import Timing, run_workload
from scripts.speed.workloads import Workload, make_workload

if TYPE_CHECKING:
    from jaxinfer import LLM

_DEVIATION = 0.02
_PROFILED_TOKENS = 64
_WARM_UP = -1  # the repeat whose ids warm the engine up
_UPDATES = 30
_UPDATED_ROWS, _UPDATED_LENGTH = 8, 128


def adapter_report(
    model_shape: str | None,
    *,
    engine_arguments: dict[str, Any],
    num_adapters: int,
    rank: int,
    rows: int | None,
    repeats: int,
    profiles: bool = False,
    one_engine: bool = False,
) -> dict[str, Any]:
    """Run W1 on an engine without adapters, then on one with them, in the same process.

    Args:
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set.
        num_adapters: slots of the engine, and adapters that its requests take in turn.
        rank: of each.
        rows: the first sequences of W1 only; None for all.
        repeats: counted runs of each, after one that is not.
        profiles: whether one more run of each goes under the profiler.
        one_engine: leave the plain engine out, whose programs requests of none run, too.

    Returns:
        JSON-like values: of the "plain" engine and of the one with adapters, whose requests have
        "none", the same "one", or the "mixed" ones in turn, seconds, tokens a second and the ratio
        of seconds to the first case's; "update_s", seconds of `LLM.update_adapter` from arrays on
        the device to a request's next token, and "update_call_s" of the call alone;
        "num_compilations" counts what the runs compiled.
    """
    sizes = make_workload("W1", _WARM_UP, vocab_size=2)
    own = {
        "max_model_len": sizes.max_model_len,
        "max_num_seqs": rows or sizes.num_sequences,
    }
    slots = {"enable_lora": True, "max_loras": num_adapters, "max_lora_rank": rank}
    cases = {}
    if not one_engine:
        with build_engine(model_shape, own | engine_arguments) as llm:
            cases["plain"] = _measured(llm, None, rows, repeats, profiles)
    with build_engine(model_shape, own | slots | engine_arguments) as llm:
        names = [f"adapter-{index}" for index in range(num_adapters)]
        for seed, name in enumerate(names):
            llm.load_adapter(name, random_adapter(llm.model_config, rank, seed))
        for kind, adapters in (("none", None), ("one", names[:1]), ("mixed", names)):
            cases[kind] = _measured(llm, adapters, rows, repeats, profiles)
        report = {
            **engine_record(llm, model_shape),
            "start_up": dataclasses.asdict(llm.start_up),
            "num_adapters": num_adapters,
            "rank": rank,
            **_updates(llm, names[0], rank),
        }
    first = next(iter(cases.values()))["seconds"]
    for case in cases.values():
        case["ratio"] = case["seconds"] / first
    compiled = sum(case["num_compilations"] for case in (report, *cases.values()))
    return report | {"cases": cases, "num_compilations": compiled}


def update_report(
    model_shape: str | None, *, engine_arguments: dict[str, Any], num_adapters: int, rank: int
) -> dict[str, Any]:
    """How long an adapter's arrays take to a step of an engine that runs nothing else.

    Arguments, "update_s", "update_call_s" and "num_compilations" are as of `adapter_report`.
    """
    own = {"max_model_len": _UPDATED_LENGTH, "max_num_seqs": _UPDATED_ROWS}
    slots = {"enable_lora": True, "max_loras": num_adapters, "max_lora_rank": rank}
    with build_engine(model_shape, own | slots | engine_arguments) as llm:
        for seed in range(num_adapters):
            llm.load_adapter(f"adapter-{seed}", random_adapter(llm.model_config, rank, seed))
        updates = _updates(llm, "adapter-0", rank)
        return {
            **engine_record(llm, model_shape),
            "start_up": dataclasses.asdict(llm.start_up),
            "num_adapters": num_adapters,
            "rank": rank,
            **updates,
        }


def update_lines(report: dict[str, Any]) -> list[str]:
    """The figures for people."""
    update, call = (report[name] * 1e3 for name in ("update_s", "update_call_s"))
    return [
        *heading(report),
        "",
        f"update from arrays: {update:.2f} ms, to the next token of a request; the call {call:.2f}",
    ]


def adapter_lines(report: dict[str, Any]) -> list[str]:
    """The figures for people."""
    lines = [*heading(report), ""]
    for kind, case in report["cases"].items():
        lines.append(
            f"{kind}: {case['seconds']:.3f} s, {case['output_tokens_per_s']:,.0f} output tok/s, "
            f"{case['ratio']:.3f} of the first one's time, spread {case['spread']:.3f}"
        )
        profile = case["device_time"] or {"kernels": []}
        lines += [
            f"    {kernel['seconds'] * 1e3:9.2f} ms {kernel['launches']:7} x {kernel['name']}"
            for kernel in profile["kernels"]
        ]
    return [*lines, update_lines(report)[-1]]


def random_adapter(config: ModelConfig, rank: int, seed: int) -> dict[str, jax.Array]:
    """A trainer's leaves for every projection, with PEFT's names, on the default device."""
    key, leaves = jax.random.key(seed), {}
    shapes = projection_shapes(config)
    for layer in range(config.num_hidden_layers):
        for path in PROJECTIONS:
            if path == HEAD:
                continue
            outputs, inputs = shapes[path.rpartition(".")[2]]
            name = f"model.layers.{layer}.{path}"
            for part, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
                key, own = jax.random.split(key)
                values = jax.random.normal(own, shape, np.float32) * _DEVIATION
                leaves[f"{name}.{part}.weight"] = values
    return leaves


def _measured(
    llm: "LLM", adapters: Sequence[str] | None, rows: int | None, repeats: int, profiles: bool
) -> dict[str, Any]:
    """Runs of W1 whose requests have these adapters in turn."""
    timings = [_run(llm, adapters, rows, repeat) for repeat in range(_WARM_UP, repeats)][1:]
    middle = statistics.median(timing.seconds for timing in timings)
    seconds = [timing.seconds for timing in timings]
    return {
        "seconds": middle,
        "output_tokens_per_s": timings[0].num_output_tokens / middle,
        "spread": max(seconds) / min(seconds),
        "repeats": [dataclasses.asdict(timing) for timing in timings],
        "num_compilations": sum(timing.num_compilations for timing in timings),
        "device_time": _profile(lambda: _run(llm, adapters, rows, repeats, _PROFILED_TOKENS))
        if profiles
        else None,
    }


def _run(
    llm: "LLM",
    adapters: Sequence[str] | None,
    rows: int | None,
    repeat: int,
    most_tokens: int | None = None,
) -> Timing:
    workload = make_workload("W1", repeat, vocab_size=llm.model_config.vocab_size)
    prompts, lengths = workload.prompts[:rows], workload.max_tokens[:rows]
    lengths = [min(length, most_tokens or length) for length in lengths]
    workload: Workload = dataclasses.replace(workload, prompts=prompts, max_tokens=lengths)
    llm.reset_prefix_cache()
    if adapters is None:
        return run_workload(llm, workload)
    own = [adapters[index % len(adapters)] for index in range(len(prompts))]
    return run_workload(llm, workload, lora_request=own)


def _profile(run: Callable[[], Any]) -> dict[str, Any] | None:
    return None if jax.default_backend() == "cpu" else device_time(run)


def _updates(llm: "LLM", name: str, rank: int) -> dict[str, Any]:
    """Seconds of an update to a request's first token, and of its call; and what was compiled."""
    from jaxinfer import SamplingParams

    params = SamplingParams(max_tokens=1, ignore_eos=True, detokenize=False)
    trees = [random_adapter(llm.model_config, rank, 1000 + seed) for seed in range(2)]
    jax.block_until_ready(trees)

    def seconds(tree: Any) -> tuple[float, float]:
        start = time.perf_counter()
        if tree is not None:
            llm.update_adapter(name, tree)
        called = time.perf_counter()
        llm.generate([[1, 2, 3]], params, use_tqdm=False, lora_request=name)
        return time.perf_counter() - start, called - start

    for tree in trees * 2:
        seconds(tree)
    compiled = llm.num_compilations
    plain = [seconds(None)[0] for _ in range(_UPDATES)]
    totals, calls = zip(*(seconds(trees[i % 2]) for i in range(_UPDATES)), strict=True)
    update = statistics.median(totals) - statistics.median(plain)
    return {
        "update_s": update,
        "update_call_s": statistics.median(calls),
        "num_compilations": llm.num_compilations - compiled,
    }
