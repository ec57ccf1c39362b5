"""Runs workloads on an engine and times them."""

import dataclasses
import random
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxinfer.measure.workloads import Workload

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


def run_workload(llm: "LLM", workload: Workload) -> Timing:
    """Run a workload to its end.

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
    compiled, start = llm.num_compilations, time.perf_counter()
    outputs = llm.generate(workload.prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    written = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    if written != workload.num_output_tokens:
        raise RuntimeError(f"{workload.num_output_tokens} tokens were asked for, {written} written")
    cached = sum(output.num_cached_tokens for output in outputs)
    _check_cached(llm, workload, cached)
    return Timing(
        seconds=seconds,
        ttft_s=statistics.median(_known(outputs, "ttft")),
        tpot_s=statistics.median(_known(outputs, "tpot") or [0.0]) or None,
        num_prompt_tokens=workload.num_prompt_tokens,
        num_cached_tokens=cached,
        num_output_tokens=written,
        num_compilations=llm.num_compilations - compiled,
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """Prefill and decode speed at one batch size and prompt length, medians of the repeats.

    Attributes:
        rows: sequences at once.
        prompt_tokens: length of each prompt.
        decode_steps: steps that `decode_step_s` is the mean of.
        prefill_s: seconds to read all prompts and write one token each.
        decode_step_s: seconds of one decode step.
        spread: largest divided by smallest `prefill_s` of the repeats.
        num_compilations: programs compiled while it was measured.
    """

    rows: int
    prompt_tokens: int
    decode_steps: int
    prefill_s: float
    decode_step_s: float
    spread: float
    num_compilations: int

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens a second, over all rows."""
        return self.rows * self.prompt_tokens / self.prefill_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens a second, over all rows."""
        return self.rows / self.decode_step_s


def measure_speed(
    llm: "LLM", *, rows: int, prompt_tokens: int, decode_steps: int, repeats: int, vocab_size: int
) -> Speed:
    """Time prompts with one output each, and with `decode_steps` more; the difference is decoding.

    Each repeat of each size has its own token ids; a repeat that is not counted goes first and
    compiles the shapes.
    """
    pairs: list[tuple[Timing, Timing]] = []
    for repeat in range(repeats + 1):
        draw = _Draw(rows, prompt_tokens, repeat, vocab_size)
        short, long = draw.workload(1), draw.workload(1 + decode_steps)
        pairs.append((run_workload(llm, short), run_workload(llm, long)))
    shorts, longs = zip(*pairs[1:], strict=True)
    prefills = [timing.seconds for timing in shorts]
    prefill_s = statistics.median(prefills)
    total_s = statistics.median(timing.seconds for timing in longs)
    return Speed(
        rows=rows,
        prompt_tokens=prompt_tokens,
        decode_steps=decode_steps,
        prefill_s=prefill_s,
        # Noise can make a tiny difference negative on a busy machine; a step is never free.
        decode_step_s=max(total_s - prefill_s, 1e-9) / decode_steps,
        spread=max(prefills) / min(prefills),
        num_compilations=sum(timing.num_compilations for pair in pairs[1:] for timing in pair),
    )


@dataclasses.dataclass(frozen=True)
class _Draw:
    """Prompts of equal length that differ in every token."""

    rows: int
    prompt_tokens: int
    repeat: int
    vocab_size: int

    def workload(self, max_tokens: int) -> Workload:
        # Another batch size must not find this one's prompts cached, or its steps would change
        # shape as they are evicted.
        source = random.Random(f"{self.rows} {self.prompt_tokens} {self.repeat} {max_tokens}")
        prompts = [
            [source.randrange(self.vocab_size) for _ in range(self.prompt_tokens)]
            for _ in range(self.rows)
        ]
        return Workload(
            name="speed",
            description=f"{self.rows} prompts of {self.prompt_tokens}",
            prompts=prompts,
            max_tokens=[max_tokens] * self.rows,
        )
