"""Statistics of a command's run, its speed and memory, as one line on stderr."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxinfer.cli.answers.answer import Answer, RunTimes
from jaxinfer.profiling.figures import share_text

if TYPE_CHECKING:
    from jaxinfer import LLM

_GIGABYTE = 10**9


class Stopwatch:
    """Seconds, tokens and compilations of an engine since this was made."""

    def __init__(self, llm: "LLM") -> None:
        self._llm = llm
        self._num_compilations, self._compile_s = llm.num_compilations, llm.compile_seconds
        self._start = time.perf_counter()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self._steady = (0, 0.0)

    def mark_tokens(self, number: int) -> None:
        """Record the time of an output of some tokens."""
        now, last = self._now(), self._last
        if self._first is None:
            self._first = now
        elif now[1] == last[1]:  # nothing was compiled meanwhile
            self._steady = (self._steady[0] + number, self._steady[1] + now[0] - last[0])
        self._last = now

    def times(self) -> RunTimes:
        """The times so far; without a marked first token, its time is now."""
        total_s, compile_s = self._now()
        first_token_s, first_compile_s = self._first or (total_s, compile_s)
        return RunTimes(
            first_token_s=first_token_s,
            total_s=total_s,
            first_compile_s=first_compile_s,
            steady=self._steady,
            compile_s=compile_s,
            num_compilations=self._llm.num_compilations - self._num_compilations,
            peak_memory_bytes=peak_memory_bytes(),
        )

    def _now(self) -> tuple[float, float]:
        return time.perf_counter() - self._start, self._llm.compile_seconds - self._compile_s


def answer_line(answer: Answer, times: RunTimes) -> str:
    """One answer's tokens with their speeds, times and memory.

    A speed is of the time in which nothing was compiled, and left out where there is none.
    """
    cached = f" ({answer.cached_tokens} cached)" if answer.cached_tokens else ""
    generated = answer.generation_tokens
    prompt_s = 0.0 if times.first_compile_s else times.first_token_s
    steady = times.steady or (generated - 1, times.total_s - times.first_token_s)
    parts = [
        f"prompt {count(answer.prompt_tokens, 'token')}{cached}"
        f"{_rate(answer.prompt_tokens, prompt_s)}",
        f"generation {count(generated, 'token')}{_rate(*steady)}",
        *_drafts([answer]),
        *_compiled(times),
        f"first token {times.first_token_s:.3f} s",
        *([f"ended by {answer.finish_reason}"] if answer.finish_reason else []),
        *_memory(times),
    ]
    return " | ".join(parts)


def batch_line(answers: Sequence[Answer], times: RunTimes) -> str:
    """Statistics of requests that were submitted together; times are from their own clocks."""
    metrics = [answer.metrics for answer in answers if answer.metrics is not None]
    start = min((metric.arrival_time for metric in metrics), default=0.0)
    firsts = [metric.first_token_time for metric in metrics if metric.first_token_time is not None]
    ends = [metric.finished_time for metric in metrics if metric.finished_time is not None]
    total_s = max(ends, default=start) - start
    generated = sum(answer.generation_tokens for answer in answers)
    num_cut = sum(answer.finish_reason == "length" for answer in answers)
    parts = [
        f"{count(len(answers), 'prompt')}, "
        f"{count(sum(answer.prompt_tokens for answer in answers), 'token')} "
        f"({sum(answer.cached_tokens for answer in answers)} cached)",
        f"generation {count(generated, 'token')} in {total_s:.2f} s"
        f"{_rate(generated, 0.0 if times.compile_s else total_s)}",
        *_drafts(answers),
        *_compiled(times),
        f"first token {min(firsts, default=start) - start:.3f} s",
        *([f"{num_cut} of {len(answers)} cut at their maximum length"] if num_cut else []),
        *_memory(times),
    ]
    return " | ".join(parts)


def count(number: int, noun: str) -> str:
    """A number and a noun in the right form: "1 token", "2 tokens"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _rate(tokens: int, seconds: float) -> str:
    """A rate as the end of a part of the line; empty if it is unknown."""
    return f", {tokens / seconds:.1f} tok/s" if tokens > 0 and seconds > 0 else ""


def _drafts(answers: Sequence[Answer]) -> list[str]:
    """Drafts that were verified for answers, if any were, and how many of them were accepted."""
    drafts = sum(answer.drafts[0] for answer in answers)
    accepted = sum(answer.drafts[1] for answer in answers)
    if not drafts:
        return []
    return [f"{accepted} of {count(drafts, 'draft')} accepted ({share_text(accepted / drafts)})"]


def _compiled(times: RunTimes) -> list[str]:
    number = times.num_compilations
    return [f"compiling {count(number, 'program')}, {times.compile_s:.1f} s"] if number else []


def _memory(times: RunTimes) -> list[str]:
    peak = times.peak_memory_bytes
    return [f"peak memory {peak / _GIGABYTE:.2f} GB"] if peak else []


def peak_memory_bytes() -> int:
    """Peak memory of this process: the fullest device's on a GPU, resident memory on a CPU.

    Returns 0 where the system does not say.
    """
    import jax

    if jax.default_backend() == "cpu":
        return _peak_resident_bytes()
    peaks = [
        (device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()
    ]
    return max(peaks)


def _peak_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
