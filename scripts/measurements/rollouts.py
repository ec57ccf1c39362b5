"""Measures a trainer's waiting times: for rollouts as arrays, and for new weights going in."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxinfer import LLM, Counter, ParamsMapping, SamplingParams
from jaxinfer.measure.random_weights import build_engine, random_params
from jaxinfer.model.sharding import make_mesh
from jaxinfer.planning.devices import find_chip
from jaxinfer.rollouts.trees import leaves_by_path
from scripts.speed.gpu_clock import ClockWatch, smi_command
from scripts.speed.report import engine_record
from scripts.speed.workloads import Workload, make_workload

_WARM_UP = -1  # the repeat that is not counted
_PIECE = 1 << 28  # bytes of an array that takes memory away


def rollouts_report(
    names: Sequence[str], *, model_shape: str, engine_arguments: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """Tokens a second of `LLM.rollout`, arrays on the device included.

    Args:
        names: workloads of several samples a prompt, of `WORKLOAD_NAMES`.
        model_shape: a name of `SERVED_SHAPES`.
        engine_arguments: what the user set; the rest fits the largest workload.
        repeats: counted runs of each, after one that is not. Each begins with an empty prefix
            cache.

    Raises:
        RuntimeError: a run wrote another number of tokens, found prompts in the prefix cache, or
            compiled.
    """
    lengths = [make_workload(name, _WARM_UP, vocab_size=2) for name in names]
    defaults = {
        "max_model_len": max(each.max_model_len for each in lengths),
        "max_num_seqs": max(each.num_sequences for each in lengths),
        # What the loss of most trainers divides by; here the temperature is 1.
        "logprobs_mode": "temperature_logprobs",
    }
    workloads: dict[str, Any] = {}
    with build_engine(model_shape, defaults | engine_arguments) as llm:
        for name in names:
            with ClockWatch(smi_command()) as clocks:
                seconds = [_rollout_seconds(llm, name, i) for i in range(_WARM_UP, repeats)][1:]
            tokens = make_workload(name, 0, vocab_size=2).num_output_tokens
            middle = statistics.median(seconds)
            workloads[name] = {
                "seconds": seconds,
                "output_tokens_per_s": tokens / middle,
                "spread": max(seconds) / min(seconds),
                "clocks": clocks.summary(),
            }
        return {"workloads": workloads, **engine_record(llm, model_shape)}


def _rollout_seconds(llm: LLM, name: str, repeat: int) -> float:
    workload = make_workload(name, repeat, vocab_size=llm.model_config.vocab_size)
    llm.reset_prefix_cache()
    cached, compiled = _cached_tokens(llm), llm.num_compilations
    start = time.perf_counter()
    rollouts = llm.rollout(
        workload.prompts,
        SamplingParams(
            temperature=workload.temperature, max_tokens=workload.max_tokens[0], ignore_eos=True
        ),
        n=workload.num_samples,
        pad_to=(len(workload.prompts[0]), workload.max_tokens[0]),
        device=jax.devices()[0],
    )
    jax.block_until_ready(rollouts)
    seconds = time.perf_counter() - start
    _check(llm, workload, int(rollouts.lengths.sum()), _cached_tokens(llm) - cached)
    if repeat != _WARM_UP and llm.num_compilations > compiled:
        raise RuntimeError(f"{name}: programs were compiled in a counted run")
    return seconds


def _cached_tokens(llm: LLM) -> int:
    """Prompt tokens that samples found in the prefix cache since the engine started."""
    hits = "jaxinfer:prefix_cache_hits"
    return sum(
        int(each.value)
        for each in llm.get_metrics()
        if isinstance(each, Counter) and each.name == hits
    )


def _check(llm: LLM, workload: Workload, written: int, cached: int) -> None:
    if written != workload.num_output_tokens:
        raise RuntimeError(f"{workload.num_output_tokens} tokens were asked for, {written} written")
    # The first sample of a prompt computes it, its siblings find what it computed.
    if cached > (most := (workload.num_samples - 1) * workload.num_prompt_tokens):
        raise RuntimeError(
            f"{workload.name}: {cached:,} prompt tokens came from the prefix cache, which siblings "
            f"explain {most:,} of at most"
        )


def rollouts_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    return [
        f"{name}: {each['output_tokens_per_s']:,.0f} tokens a second as arrays, "
        f"spread {each['spread']:.2f}"
        for name, each in report["workloads"].items()
    ]


@dataclasses.dataclass(frozen=True)
class _Sync:
    seconds: list[float]
    compilations: int
    bytes_before: int | None
    bytes_after: int | None


def weight_sync_report(
    *, model_shape: str, engine_arguments: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """Seconds of `LLM.update_params` from a trainer's tree on the same device.

    Of the same layout (`ParamsMapping.hugging_face`) and of Flax's kernels, all of which are
    transposed (`ParamsMapping.nnx_linear`). The first call of each compiles and is not counted.
    While they run, all memory but a twentieth of the weights is taken: a second copy would fail.
    """
    defaults = {"max_model_len": 1024, "max_num_seqs": 8, "compile_ahead": False}
    # Few blocks: the trainer's weights need the memory.
    defaults |= {"num_kv_blocks": 1024}
    with build_engine(model_shape, defaults | engine_arguments) as llm:
        config, mesh = llm.model_config, make_mesh(1)
        trainer = random_params(config, "bfloat16", mesh, seed=1)
        weight_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(trainer))
        layouts: dict[str, Any] = {}
        layouts["same layout"] = _sync(
            llm, trainer, ParamsMapping.hugging_face(config), weight_bytes, repeats
        )
        trainer = _flax_layout(trainer)
        layouts["transposed"] = _sync(
            llm, trainer, ParamsMapping.nnx_linear(config), weight_bytes, repeats
        )
        chip = find_chip(jax.devices()[0].device_kind)
        return {
            "weight_bytes": weight_bytes,
            # Each byte is read once and written once.
            "floor_s": chip and 2 * weight_bytes / chip.bytes_per_s,
            "layouts": {
                name: {**dataclasses.asdict(sync), "median_s": statistics.median(sync.seconds)}
                for name, sync in layouts.items()
            },
            **engine_record(llm, model_shape),
        }


def _sync(llm: LLM, trainer: Any, mapping: ParamsMapping, weight_bytes: int, repeats: int) -> _Sync:
    llm.update_params(trainer, mapping)
    ballast = _ballast(weight_bytes // 20)
    compiled, before, seconds = llm.num_compilations, _bytes_in_use(), []
    for _ in range(repeats):
        start = time.perf_counter()
        llm.update_params(trainer, mapping)
        jax.block_until_ready(llm._loaded.replicas[0].runner.resident.params)
        seconds.append(time.perf_counter() - start)
    after = _bytes_in_use()
    del ballast
    return _Sync(seconds, llm.num_compilations - compiled, before, after)


def _ballast(left: int) -> list[jax.Array]:
    """Arrays that take all of the device's memory but `left` bytes; none on a CPU."""
    arrays: list[jax.Array] = []
    stats = jax.devices()[0].memory_stats() or {}
    # In pieces: what is free does not lie together, and the last of it is no whole piece.
    for _ in range((stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0) - left) // _PIECE):
        try:
            arrays.append(jax.block_until_ready(jnp.zeros(_PIECE, jnp.uint8)))
        except jax.errors.JaxRuntimeError:
            break
    return arrays


def _bytes_in_use() -> int | None:
    return (jax.devices()[0].memory_stats() or {}).get("bytes_in_use")


def _flax_layout(params: Any) -> dict[str, jax.Array]:
    """The names and layouts that `ParamsMapping.nnx_linear` reads; gives up the given arrays."""
    transpose = jax.jit(jnp.transpose)
    given, flax = leaves_by_path(params), {}
    for path in list(given):
        leaf = given.pop(path)
        if path.endswith("norm"):
            flax[f"{path}.scale"] = leaf
        elif path.endswith("embed_tokens"):
            flax[f"{path}.embedding"] = leaf
        else:
            flax[f"{path}.kernel"] = transpose(leaf)
    return flax


def weight_sync_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    floor = report["floor_s"]
    lines = [
        f"{name}: {1e3 * each['median_s']:.1f} ms, {each['compilations']} compilations"
        for name, each in report["layouts"].items()
    ]
    return [*lines, f"floor: {1e3 * floor:.1f} ms"] if floor else lines
