"""Runs a batch on an engine: its steps timed by the host's clock, and recorded."""

import dataclasses
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxinfer import LLM, ProfileSchedule

_REPEATS = 5
_WARM_UPS = 2
"""Number of warm-up batches: a program's first launches compile it and capture its CUDA graph."""
TIMED_TOKENS = 33
"""Tokens of each sequence: enough steps for the median of a decode step."""
_TIMED_READS = 5  # of a batch whose prompts are read alone, each a step or more
Timing = dict[str, Any]
"""The fields of `jaxinfer.profiling.host_time.Timing`, as JSON-like values."""


def time_steps(llm: "LLM", prompts: list[list[int]], run: str) -> list[Timing]:
    """The median step of each kind in some batches, named `run`, after others that warm up."""
    from jaxinfer.profiling.host_time import StepTime, timings

    count = _TIMED_READS if _pools(llm) else TIMED_TOKENS
    for _ in range(_WARM_UPS):
        run_batch(llm, prompts, count)
    every: list[StepTime] = []
    for _ in range(_REPEATS):
        with llm.time_steps() as steps:
            run_batch(llm, prompts, count)
        every += steps
    return [dataclasses.asdict(timing) for timing in timings(every, run)]


def record_steps(
    llm: "LLM", prompts: list[list[int]], directory: Path, schedule: "ProfileSchedule"
) -> None:
    """Record a batch's steps into a directory, after others that warm up."""
    for _ in range(_WARM_UPS):
        run_batch(llm, prompts, schedule.num_steps)
    with llm.profile(directory, schedule):
        run_batch(llm, prompts, schedule.num_steps)


def run_batch(llm: "LLM", prompts: list[list[int]], tokens: int) -> None:
    """Generate `tokens` tokens after each prompt, with nothing cached.

    An engine for pooling reads the prompts as often instead, with nothing cached each time.
    """
    from jaxinfer import SamplingParams

    if _pools(llm):
        for _ in range(tokens):
            llm.reset_prefix_cache()
            llm.embed(prompts)
        return
    llm.reset_prefix_cache()
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)


def _pools(llm: "LLM") -> bool:
    return llm.engine_config.runner == "pooling"


def random_prompts(sequences: int, tokens: int, vocab_size: int) -> list[list[int]]:
    """Prompts of random token ids, the same in every process."""
    draw = random.Random(0)
    return [[draw.randrange(vocab_size) for _ in range(tokens)] for _ in range(sequences)]
