"""Measures how soon evicted conversations answer from host memory."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

import numpy as np

from jaxinfer.measure.random_weights import build_engine
from jaxinfer.profiling.figures import share_text
from jaxinfer.serving.engine.metrics import Counter, Gauge
from jaxinfer.serving.prefix_tiers.transfers import Transfers
from jaxinfer.serving.programs.kinds.block_rows import BlockRowCopies
from scripts.speed.engine_report import heading
from scripts.speed.report import engine_record

if TYPE_CHECKING:
    from jaxinfer import LLM

_HOST_GIB = {"8b": 48.0, "0.6b": 40.0}
"""Room for twice 64 conversations of 2,048 tokens."""
_MOST_BEGIN_MS = 0.5
"""The longest that the engine's thread should take to begin copies."""


def tier_report(
    model_shape: str | None,
    *,
    engine_arguments: dict[str, Any],
    conversations: int,
    tokens: int,
) -> dict[str, Any]:
    """Ask conversations again that others evicted.

    Args:
        model_shape: random weights of this shape, or None for the model of `engine_arguments`.
        engine_arguments: what the user set.
        conversations: N, for which the cache has just room.
        tokens: of each.

    Returns:
        JSON-like values: "recomputed" and "fetched" have seconds to the first token of each
        conversation, asked "one_by_one" and "at_once", with their medians and 99th percentiles, and
        "beginnings", the longest that the engine's thread took to begin copies;
        "ratio" is that of the medians.
    """
    block_size = engine_arguments.get("block_size", 16)
    sizes = {
        "max_model_len": tokens + block_size,
        "max_num_seqs": conversations,
        "num_kv_blocks": conversations * -(-(tokens + 1) // block_size) + 1,
    }
    with build_engine(model_shape, sizes | engine_arguments | {"kv_offloading_size": 0.0}) as llm:
        recomputed = _asked(llm, conversations, tokens, again=False)
    with build_engine(model_shape, sizes | host_memory(model_shape) | engine_arguments) as llm:
        fetched = _asked(llm, conversations, tokens, again=True)
        return {
            **engine_record(llm, model_shape),
            "start_up": dataclasses.asdict(llm.start_up),
            "conversations": conversations,
            "tokens": tokens,
            "recomputed": recomputed,
            "fetched": fetched,
            "ratio": {
                way: fetched[way]["median_s"] / recomputed[way]["median_s"]
                for way in ("one_by_one", "at_once")
            },
            "metrics": {
                metric.name + "".join(f",{label}" for label in metric.labels.values()): metric.value
                for metric in llm.get_metrics()
                if isinstance(metric, Counter | Gauge)
                and ("tier" in metric.name or "external" in metric.name)
            },
            "num_compilations": recomputed["num_compilations"] + fetched["num_compilations"],
        }


def host_memory(model_shape: str | None) -> dict[str, float]:
    """The engine's argument for tiers of a shape, unless the user sets another."""
    return {"kv_offloading_size": _HOST_GIB.get(model_shape or "", 1.0)}


def tier_lines(report: dict[str, Any]) -> list[str]:
    """The figures for people."""
    lines = [*heading(report), ""]
    lines.append(f"{report['conversations']} conversations of {report['tokens']:,} tokens")
    for way, ratio in report["ratio"].items():
        for kind in ("recomputed", "fetched"):
            case = report[kind][way]
            cached = share_text(case["cached_share"], 1)
            lines.append(
                f"{way} {kind}: median {case['median_s'] * 1e3:.2f} ms, 99% "
                f"{case['p99_s'] * 1e3:.2f} ms, {cached} of the tokens cached"
            )
        lines.append(f"{way}: {ratio:.3f} of the time to recompute")
    begun = report["fetched"]["beginnings"]
    lines.append(
        f"beginning copies, {begun['calls']:,} times: at most {begun['longest_ms']:.3f} ms of the "
        f"engine's thread, {_MOST_BEGIN_MS} wanted"
    )
    lines += [f"{name}: {value:,}" for name, value in report["metrics"].items()]
    return lines


def _asked(llm: "LLM", count: int, tokens: int, *, again: bool) -> dict[str, Any]:
    """Seconds to first tokens: of conversations that were evicted, or of new ones."""
    rng = np.random.default_rng(0)
    vocab_size = llm.model_config.vocab_size

    def some() -> list[list[int]]:
        return rng.integers(0, vocab_size, (count, tokens)).tolist()

    first, warm = some(), some()
    for prompts in (first, warm, first, warm):  # the last two warm the way back up, too
        _generate(llm, prompts)
        _generate(llm, some()[:1])
        _generate(llm, prompts[:1])
    before, ways = llm.num_compilations, dict[str, Any]()
    with Beginnings(_BEGINNERS if again else ()) as begun:
        for way in ("one_by_one", "at_once"):
            asked = first if again else some()
            ways[way] = _one_by_one(llm, asked) if way == "one_by_one" else _at_once(llm, asked)
            _generate(llm, some())
    return ways | {
        "num_compilations": llm.num_compilations - before,
        "beginnings": begun.record(),
    }


_BEGINNERS = ((BlockRowCopies, "copy_out"), (BlockRowCopies, "copy_back"), (Transfers, "fetch"))
"""What an engine with tiers calls between steps: blocks out, blocks back, and fetches."""


class Beginnings:
    """Times every call of some methods while it is entered; they return once copies have begun.

    Args:
        methods: classes and names of their methods, which are replaced until the exit.
    """

    def __init__(self, methods: Sequence[tuple[type, str]]) -> None:
        self._seconds: list[float] = []
        self._replaced = ExitStack()
        self._methods = methods

    def __enter__(self) -> Self:
        for owner, name in self._methods:
            timed = self._timed(getattr(owner, name))
            self._replaced.enter_context(mock.patch.object(owner, name, timed))
        return self

    def __exit__(self, *error: object) -> None:
        self._replaced.close()

    def record(self) -> dict[str, Any]:
        """How many calls there were, and the longest in ms; 0 without any."""
        return {
            "calls": len(self._seconds),
            "longest_ms": max(self._seconds, default=0.0) * 1e3,
        }

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                self._seconds.append(time.perf_counter() - start)

        return call


def _one_by_one(llm: "LLM", prompts: Sequence[list[int]]) -> dict[str, Any]:
    seconds, cached = [], 0
    for prompt in prompts:
        start = time.perf_counter()
        (output,) = _generate(llm, [prompt])
        seconds.append(time.perf_counter() - start)
        cached += output.num_cached_tokens
    return _summary(seconds, cached, prompts)


def _at_once(llm: "LLM", prompts: Sequence[list[int]]) -> dict[str, Any]:
    outputs = _generate(llm, prompts)
    seconds = [output.metrics.ttft for output in outputs]
    return _summary(seconds, sum(output.num_cached_tokens for output in outputs), prompts)


def _summary(seconds: Sequence[float], cached: int, prompts: Sequence[list[int]]) -> dict[str, Any]:
    return {
        "median_s": statistics.median(seconds),
        "p99_s": float(np.quantile(seconds, 0.99)),
        "seconds": list(seconds),
        "cached_share": cached / sum(map(len, prompts)),
    }


def _generate(llm: "LLM", prompts: Sequence[list[int]]) -> list[Any]:
    from jaxinfer import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, detokenize=False)
    return llm.generate(list(prompts), params, use_tqdm=False)
