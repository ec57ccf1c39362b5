"""Runs workloads on an engine and times them."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scripts.speed.batch_speeds import timed_run
from scripts.speed.workloads import Workload

if TYPE_CHECKING:
    from jaxinfer import LLM
    from jaxinfer.outputs import RequestOutput


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """One run of a workload.

    Attributes:
        seconds: from submission to the last token.
        ttft_s: median over requests of the time to the first token.
        tpot_s: median over requests of the seconds per token after the first; None where no
            request wrote two.
        num_prompt_tokens: tokens read.
        num_cached_tokens: of these, found in the prefix cache.
        num_output_tokens: tokens written.
        num_compilations: programs compiled within `seconds`; a figure counts only when 0.
    """

    seconds: float
    ttft_s: float
    tpot_s: float | None
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    num_compilations: int

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens written a second, prefill included."""
        return self.num_output_tokens / self.seconds

    @property
    def prompt_tokens_per_s(self) -> float:
        """Tokens read a second, decoding included."""
        return self.num_prompt_tokens / self.seconds


def run_workload(llm: "LLM", workload: Workload, **options: Any) -> Timing:
    """Run a workload to its end; `options` are further arguments of `LLM.generate`.

    Raises:
        RuntimeError: the engine did not write exactly the tokens asked for, or the number of prompt
            tokens in its prefix cache is not the workload's.
    """
    from jaxinfer import SamplingParams

    shared: dict[str, Any] = {
        "n": workload.num_samples,
        "temperature": workload.temperature,
        "ignore_eos": True,
        "detokenize": False,
        "logprobs": 0 if workload.returns_logprobs else None,
    }
    params = [
        SamplingParams(
            max_tokens=count, **shared | (_demands(count) if workload.is_demanding(i) else {})
        )
        for i, count in enumerate(workload.max_tokens)
    ]
    run = timed_run(llm, workload.prompts, params, **options)
    cached = sum(output.num_cached_tokens for output in run.outputs)
    _check_cached(llm, workload, cached)
    return Timing(
        seconds=run.seconds,
        ttft_s=statistics.median(_known(run.outputs, "ttft")),
        tpot_s=statistics.median(_known(run.outputs, "tpot") or [0.0]) or None,
        num_prompt_tokens=workload.num_prompt_tokens,
        num_cached_tokens=cached,
        num_output_tokens=workload.num_output_tokens,
        num_compilations=run.num_compilations,
    )


def _demands(num_tokens: int) -> dict[str, Any]:
    return {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "logit_bias": {1: 1.0},
        "min_tokens": num_tokens // 2,
        "logprobs": 5,
    }


def _check_cached(llm: "LLM", workload: Workload, found: int) -> None:
    config = llm.engine_config
    sound = workload.cached_tokens(
        num_replicas=config.data_parallel_size, prefix_caching=config.enable_prefix_caching
    )
    if found not in sound:
        bounds = f"{sound[0]:,}" if len(sound) == 1 else f"{sound[0]:,} to {sound[-1]:,}"
        raise RuntimeError(
            f"{workload.name}: {found:,} of {workload.num_prompt_tokens:,} prompt tokens came from "
            f"the prefix cache, which should be {bounds}; call reset_prefix_cache() before each run"
        )


def _known(outputs: "Sequence[RequestOutput]", name: str) -> list[float]:
    values = [getattr(output.metrics, name) for output in outputs if output.metrics is not None]
    return [value for value in values if value is not None]
