"""Measures inter-token latency while long prompts arrive, with prompts computed apart and without.

On two GPUs: python -m scripts.measurements.prompts_apart --model-shape 8b
On a CPU: XLA_FLAGS=--xla_force_host_platform_device_count=2 python -m \
scripts.measurements.prompts_apart --rows 2 --prompts 4 --tokens 40 --answer 40
Keeps a record. Status 1 if a prompt was not handed over, or if answers differ more than rounding
lets them.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxinfer.cli.flags.engine import add_engine_flags, engine_arguments
from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cli.flags.process import process_arguments
from jaxinfer.cli.platform import start_platform
from jaxinfer.cli.process import FAILED, OK, end_process, run_command

if TYPE_CHECKING:
    from jaxinfer import LLM

_CHECKED = 8
_MOST_DIFFERENCE = 0.1  # of log-probabilities in bfloat16; in float32 it is far less


def build_parser() -> argparse.ArgumentParser:
    """The flags of this script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model-shape", help="random weights; default: the bundled model")
    parser.add_argument("--rows", type=positive_integer, default=32, help="decodes; default: 32")
    parser.add_argument("--answer", type=positive_integer, default=1024, help="their tokens")
    parser.add_argument("--prompts", type=positive_integer, default=16, help="that arrive")
    parser.add_argument("--tokens", type=positive_integer, default=8000, help="of each")
    parser.add_argument("--every", type=float, default=0.25, help="seconds between prompts")
    parser.add_argument("--offloading-gib", type=float, help="of each replica; default: what fits")
    parser.add_argument(
        "--output-directory", type=Path, help="instead of benchmarks/results/ (for trials)"
    )
    add_engine_flags(parser)
    return parser


def main() -> int:
    """Measure both ways and print one JSON object."""
    arguments = build_parser().parse_args()
    return run_command("prompts_apart", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    start_platform(process_arguments(arguments))
    from scripts.measurements.results import RESULTS, save_result

    gib = arguments.offloading_gib or (24.0 if arguments.model_shape else 0.25)
    common = {
        "online": True,
        "num_decode_steps": 1,
        "data_parallel_size": 2,
        "max_model_len": arguments.tokens + arguments.answer + 64,
        "show_progress": False,
        "kv_offloading_size": gib,
    } | engine_arguments(arguments)
    ways = {name: _measured(arguments, common | more) for name, more in _WAYS.items()}
    checks = _checks(ways, arguments)
    shown = {name: way["figures"] for name, way in ways.items()}
    report = {"figures": shown, "checks": checks}
    print(json.dumps(report, indent=1))
    sizes = {name: getattr(arguments, name) for name in ("rows", "answer", "prompts", "tokens")}
    report |= sizes | {"every_s": arguments.every} | ways["apart"]["engine"]
    kind = f"prompts-apart-{arguments.model_shape or 'bundled'}"
    print(f"kept in {save_result(kind, report, arguments.output_directory or RESULTS)}")
    return OK if all(checks[name] for name in checks if name.startswith("ok")) else FAILED


_WAYS: dict[str, dict[str, Any]] = {"together": {}, "apart": {"prefill_replicas": 1}}


def _measured(arguments: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Gaps between tokens of running rows, first tokens of prompts, and what checks need."""
    from jaxinfer import SamplingParams
    from jaxinfer.measure.random_weights import build_engine
    from scripts.speed.report import engine_record

    rng = np.random.default_rng(0)
    with build_engine(arguments.model_shape, options) as llm:
        vocab_size = llm.model_config.vocab_size
        greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)

        def some(count: int, length: int) -> list[list[int]]:
            return rng.integers(0, vocab_size, (count, length)).tolist()

        rows, prompts = some(arguments.rows, 32), some(arguments.prompts, arguments.tokens)
        checked = some(_CHECKED, arguments.tokens)
        llm.generate(some(4, arguments.tokens), greedy, use_tqdm=False)
        asyncio.run(_traffic(llm, arguments, some(arguments.rows, 32), some(2, arguments.tokens)))
        before = _counts(llm)
        gaps, firsts = asyncio.run(_traffic(llm, arguments, rows, prompts))
        after = _counts(llm)
        first = [
            llm.generate([prompt], greedy.clone(logprobs=5), use_tqdm=False)[0]
            for prompt in checked
        ]
        engine = engine_record(llm, arguments.model_shape)
    quantiles = {f"itl_p{q}_ms": float(np.percentile(gaps, q)) * 1e3 for q in (50, 99, 99.9)}
    figures = (
        quantiles
        | {
            "itl_max_ms": max(gaps) * 1e3,
            "itl_over_twice_the_median": float(np.mean(np.array(gaps) > 2 * np.median(gaps))),
            "ttft_p50_ms": float(np.median(firsts)) * 1e3,
            "ttft_max_ms": max(firsts) * 1e3,
        }
        | {name: after[name] - before[name] for name in after}
    )
    tokens = [(output.outputs[0].logprobs or [{}])[0] for output in first]
    logprobs = [{token: value.logprob for token, value in each.items()} for each in tokens]
    return {"figures": figures, "logprobs": logprobs, "engine": engine}


async def _traffic(
    llm: "LLM", arguments: argparse.Namespace, rows: list[list[int]], prompts: list[list[int]]
) -> tuple[list[float], list[float]]:
    """Decode the rows, and have prompts arrive once they run; seconds of gaps and first tokens."""
    from jaxinfer import SamplingParams

    long = SamplingParams(temperature=0.0, max_tokens=arguments.answer, ignore_eos=True)
    gaps: list[float] = []
    started = [asyncio.Event() for _ in rows]

    async def decode(prompt: list[int], is_started: asyncio.Event) -> None:
        last = None
        async for _ in llm.astream(prompt, long):
            now = time.perf_counter()
            if last is not None and all(event.is_set() for event in started):
                gaps.append(now - last)
            last = now
            is_started.set()

    async def prefill(prompt: list[int]) -> float:
        start = time.perf_counter()
        async for _ in llm.astream(prompt, long.clone(max_tokens=2)):
            return time.perf_counter() - start
        raise RuntimeError("a prompt got no token")

    running = [asyncio.create_task(decode(*each)) for each in zip(rows, started, strict=True)]
    for event in started:
        await event.wait()
    arriving = []
    for prompt in prompts:
        await asyncio.sleep(arguments.every)
        arriving.append(asyncio.create_task(prefill(prompt)))
    firsts = await asyncio.gather(*arriving)
    await asyncio.gather(*running)
    return gaps, firsts


def _counts(llm: "LLM") -> dict[str, float]:
    """Counters of handovers and of steps, by name and label."""
    from jaxinfer.serving.engine.metrics import Counter

    names = ("hand", "recomputed", "engine_step", "num_compilations", "prefix_tier_dropped")
    return {
        ".".join([metric.name.removeprefix("jaxinfer:"), *metric.labels.values()]): metric.value
        for metric in llm.get_metrics()
        if isinstance(metric, Counter) and any(name in metric.name for name in names)
    }


def _checks(ways: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """What must hold, under names that begin with "ok", and the numbers behind it."""
    apart = ways["apart"]["figures"]
    differences = [
        abs(ours[token] - theirs[token])
        for ours, theirs in zip(
            ways["apart"]["logprobs"], ways["together"]["logprobs"], strict=True
        )
        for token in ours.keys() & theirs.keys()
    ]
    return {
        "ok_handed_over": apart["handed_over_prompts"] == arguments.prompts,
        "ok_none_recomputed": apart["recomputed_prompts"] == 0,
        "ok_answers": bool(differences) and max(differences) < _MOST_DIFFERENCE,
        "num_compared": len(differences),
        "most_difference": max(differences, default=None),
    }


if __name__ == "__main__":
    end_process(main())
