"""Runs a batch on an engine: its steps timed by the host's clock, and recorded."""

import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer import LLM, ProfileSchedule

_REPEATS = 5
TIMED_TOKENS = 33
"""Of each sequence: enough steps for the mean of a decode step."""
Timing = dict[str, Any]
"""As the fields of `jaxinfer.profiling.report.Timing`."""


def time_steps(llm: "LLM", prompts: list[list[int]], run: str) -> list[Timing]:
    """Seconds of a step of each kind, the median of some batches; compiled before.

    Args:
        llm: the engine.
        prompts: token ids, all at once.
        run: what to call these in the report.
    """
    run_batch(llm, prompts, TIMED_TOKENS)
    each = [_timed(llm, prompts, TIMED_TOKENS) for _ in range(_REPEATS)]
    return [
        {"kind": kind, "run": run, "seconds": statistics.median(one[kind] for one in each)}
        for kind in each[0]
    ]


def record_steps(
    llm: "LLM", prompts: list[list[int]], directory: Path, schedule: "ProfileSchedule"
) -> list[Timing]:
    """Record a batch's steps into a directory; the same seconds of the recorded batch."""
    run_batch(llm, prompts, schedule.num_steps)
    before = _step_seconds(llm)
    with llm.profile(directory, schedule):
        run_batch(llm, prompts, schedule.num_steps)
    seconds = _mean_steps(before, _step_seconds(llm))
    return [{"kind": kind, "run": "recorded", "seconds": s} for kind, s in seconds.items()]


def run_batch(llm: "LLM", prompts: list[list[int]], tokens: int) -> None:
    """Generate `tokens` tokens after each prompt, with nothing cached."""
    from jaxinfer import SamplingParams

    llm.reset_prefix_cache()
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def random_prompts(sequences: int, tokens: int, vocab_size: int) -> list[list[int]]:
    """Prompts of random token ids, the same in every process."""
    draw = random.Random(0)
    return [[draw.randrange(vocab_size) for _ in range(tokens)] for _ in range(sequences)]


def _timed(llm: "LLM", prompts: list[list[int]], tokens: int) -> dict[str, float]:
    before = _step_seconds(llm)
    run_batch(llm, prompts, tokens)
    return _mean_steps(before, _step_seconds(llm))


def _step_seconds(llm: "LLM") -> dict[str, tuple[float, float]]:
    """Steps and their seconds so far, by kind."""
    values: dict[tuple[str, str], float] = {}
    for metric in llm.get_metrics():
        name = metric.name.removeprefix("jaxinfer:")
        if name in ("engine_steps", "engine_step_seconds"):
            values[metric.labels["kind"], name] = getattr(metric, "value", 0.0)
    return {
        kind: (values[kind, "engine_steps"], values[kind, "engine_step_seconds"])
        for kind in ("prefill", "decode")
    }


def _mean_steps(
    before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """Seconds of a step of each kind that ran in between."""
    found = {}
    for kind, (steps, seconds) in after.items():
        ran = steps - before[kind][0]
        if ran:
            found[kind] = (seconds - before[kind][1]) / ran
    return found
