"""Measures named workloads: engine start, warm-up, repeats, medians, floors, memory, profile."""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxinfer.measure.random_weights import build_engine
from jaxinfer.planning.devices import find_chip
from scripts.speed.cache_hits import CacheHits
from scripts.speed.device_time import device_time
from scripts.speed.engine_report import num_devices
from scripts.speed.floors import Floor, workload_floor
from scripts.speed.gpu_clock import ClockWatch, smi_command
from scripts.speed.report import engine_record
from scripts.speed.timing import Timing, run_workload
from scripts.speed.workloads import Workload, make_workload

if TYPE_CHECKING:
    from jaxinfer import LLM

_MAX_SEQS = 512
_PROFILED_TOKENS = 128  # of each answer, at most
# Layers that all devices run for these: a profile of twice as many exceeds a protobuf's 2 GB.
_PROFILED_LAYERS = 16_384
_WARM_UP = -1  # the repeat whose ids warm the engine up; counted repeats start at 0


def measure_workloads(
    names: Sequence[str],
    *,
    model_shape: str | None,
    engine_arguments: dict[str, Any],
    repeats: int,
    router_skew: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Measure workloads one after the other on one engine.

    Args:
        names: of `WORKLOAD_NAMES`.
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set; the rest fits the largest of the workloads.
        repeats: counted runs of each; one that is not counted goes first, and on a GPU one more
            under the profiler goes last. Each begins with an empty prefix cache.
        router_skew: of random weights, see `random_weights`.

    Yields:
        JSON-like values: engine and machine, start-up, every repeat, medians, floor, memory and
        the GPUs' clocks. Nothing on processes that follow process 0.
        "num_compilations" counts what the repeats compiled: figures stand only when it is 0.

    Raises:
        RuntimeError: a run is not the workload: see `run_workload`.
    """
    wanted = fitting_workloads(names, engine_arguments)
    with started_engine(model_shape, wanted | engine_arguments, router_skew) as started:
        yield from workload_reports(started, names, repeats)


def fitting_workloads(names: Sequence[str], engine_arguments: dict[str, Any]) -> dict[str, int]:
    """Engine arguments that hold the largest of the workloads, with these replicas of an engine."""
    # Before the model's vocabulary is known, only lengths matter.
    lengths = [make_workload(name, _WARM_UP, vocab_size=2) for name in names]
    sequences = max(each.num_sequences for each in lengths)
    replicas = engine_arguments.get("data_parallel_size", 1)
    return {
        "max_model_len": max(each.max_model_len for each in lengths),
        "max_num_seqs": min(-(-sequences // replicas), _MAX_SEQS),
    }


class Started(NamedTuple):
    """An engine to measure, and how it started.

    Attributes:
        llm: the engine.
        model_shape: its random weights' shape; None for a model of files.
        router_skew: of random weights, see `random_weights`.
        record: JSON-like values of the start.
    """

    llm: "LLM"
    model_shape: str | None
    router_skew: float
    record: dict[str, Any]


@contextlib.contextmanager
def started_engine(
    model_shape: str | None, arguments: dict[str, Any], router_skew: float = 0.0
) -> Iterator[Started]:
    """Start an engine for as long as it is measured."""
    start = time.perf_counter()
    with CacheHits() as hits:
        llm = build_engine(model_shape, arguments, router_skew)
    with llm:
        record = {
            "start_up_s": time.perf_counter() - start,
            "start_up": dataclasses.asdict(llm.start_up),
            "compiled_at_start": llm.num_compilations,
            "found_in_cache": hits.count,
        }
        yield Started(llm, model_shape, router_skew, record)


def workload_reports(
    started: Started, names: Sequence[str], repeats: int
) -> Iterator[dict[str, Any]]:
    """What `measure_workloads` yields, of an engine that runs."""
    llm = started.llm
    if llm.follows:
        llm.follow()
        return
    for name in names:
        with ClockWatch(smi_command()) as clocks:
            runs = run_repeats(llm, name, repeats)
        workload = make_workload(name, _WARM_UP, vocab_size=2)  # for its lengths
        yield {
            "workload": workload.name,
            "description": workload.description,
            **engine_record(llm, started.model_shape),
            **_spread(llm, started.router_skew),
            **started.record,
            "num_compilations": sum(
                timing.num_compilations for each in runs.values() for timing in each
            ),
            "runs": {
                kind: _summary(llm, workload, each, warm=kind == "warm")
                for kind, each in runs.items()
            },
            "clocks": clocks.summary(),
            "device_time": _profile(llm, workload.name, repeats),
        }


def _profile(llm: "LLM", name: str, repeat: int) -> dict[str, Any] | None:
    """A profile of the device in one more run; None on a CPU, which has no such record."""
    import jax

    if jax.default_backend() == "cpu":
        return None
    workload = make_workload(name, repeat, vocab_size=llm.model_config.vocab_size)
    # Long answers repeat themselves, and the profiler keeps every kernel in memory.
    layers = llm.model_config.num_hidden_layers * num_devices(llm)
    most = max(1, min(_PROFILED_TOKENS, _PROFILED_LAYERS // layers))
    workload = dataclasses.replace(
        workload, max_tokens=[min(count, most) for count in workload.max_tokens]
    )
    llm.reset_prefix_cache()
    profile = device_time(lambda: run_workload(llm, workload))
    return profile and {"output_tokens_per_sequence": most, **profile}


def _spread(llm: "LLM", router_skew: float) -> dict[str, Any]:
    """How the tokens of all workloads so far were spread over experts, if the engine counted."""
    found = llm.expert_statistics() if llm.engine_config.expert_statistics else None
    if found is None:
        return {"router_skew": router_skew} if router_skew else {}
    means = {"imbalance": found.imbalance.mean(), "distinct": found.distinct.mean()}
    return {"router_skew": router_skew} | {name: float(mean) for name, mean in means.items()}


def run_repeats(llm: "LLM", name: str, repeats: int) -> dict[str, list[Timing]]:
    """Every repeat's timing from an empty prefix cache; with shared tokens a warm run follows."""
    runs: dict[str, list[Timing]] = {}
    for repeat in range(_WARM_UP, repeats):
        for warm in (False, True):
            workload = make_workload(
                name, repeat, vocab_size=llm.model_config.vocab_size, warm=warm
            )
            if warm and not workload.shared_tokens:
                continue
            if not warm:
                llm.reset_prefix_cache()
            timing = run_workload(llm, workload)
            if repeat != _WARM_UP:
                runs.setdefault("warm" if warm else "cold", []).append(timing)
    return runs


def _summary(
    llm: "LLM", workload: Workload, timings: list[Timing], *, warm: bool
) -> dict[str, Any]:
    seconds = [timing.seconds for timing in timings]
    middle = statistics.median(seconds)
    tpots = [timing.tpot_s for timing in timings if timing.tpot_s is not None]
    return {
        "repeats": [dataclasses.asdict(timing) for timing in timings],
        "median": {
            "seconds": middle,
            "output_tokens_per_s": workload.num_output_tokens / middle,
            "prompt_tokens_per_s": workload.num_prompt_tokens / middle,
            "ttft_s": statistics.median(timing.ttft_s for timing in timings),
            "tpot_s": statistics.median(tpots) if tpots else None,
        },
        "spread": max(seconds) / min(seconds),
        "floor": _floor_record(llm, workload, warm=warm),
    }


def _floor_record(llm: "LLM", workload: Workload, *, warm: bool) -> dict[str, Any] | None:
    """The workload's least time on this chip, or None if its ceilings are unknown."""
    import jax

    chip = find_chip(jax.devices()[0].device_kind)
    if chip is None:
        return None
    devices = num_devices(llm)
    floor: Floor = workload_floor(llm.model_config, chip, workload, warm=warm, num_devices=devices)
    return {
        **dataclasses.asdict(floor),
        "total_s": floor.total_s,
        "total_shared_s": floor.total_shared_s,
        "bytes_per_s": chip.bytes_per_s,
        "flops_per_s": chip.flops_per_s,
        "devices": devices,
    }
