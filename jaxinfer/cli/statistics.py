"""Speed and memory of a run as a person reads them: one line on stderr, or fields of JSON."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxinfer.outputs import RequestOutput

GIGABYTE = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStatistics:
    """What one run cost, seen from the outside.

    Attributes:
        prompt_tokens: tokens read, over all prompts.
        cached_tokens: of these, tokens whose KV was already in the cache.
        generation_tokens: tokens written, over all prompts.
        first_token_s: seconds from submission to the first token.
        total_s: seconds from submission to the last token.
        num_compilations: programs that were compiled within `total_s`.
        peak_memory_bytes: see `peak_memory_bytes`.
    """

    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    first_token_s: float
    total_s: float
    num_compilations: int
    peak_memory_bytes: int

    @property
    def prompt_tokens_per_s(self) -> float:
        """Tokens read a second, up to the first token."""
        return self.prompt_tokens / self.first_token_s if self.first_token_s > 0 else 0.0

    @property
    def generation_tokens_per_s(self) -> float:
        """Tokens written a second after the first; 0 when there was only one."""
        seconds = self.total_s - self.first_token_s
        return (self.generation_tokens - 1) / seconds if seconds > 0 else 0.0

    def line(self) -> str:
        """The statistics in one line."""
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        return " | ".join(
            (
                f"prompt {self.prompt_tokens} tokens{cached}, "
                f"{self.prompt_tokens_per_s:.1f} tok/s{_compiled(self.num_compilations)}",
                f"generation {self.generation_tokens} tokens, "
                f"{self.generation_tokens_per_s:.1f} tok/s",
                f"first token {self.first_token_s:.3f} s",
                f"peak memory {self.peak_memory_bytes / GIGABYTE:.2f} GB",
            )
        )

    def fields(self) -> dict[str, float | int]:
        """The statistics for JSON: the attributes and the two rates."""
        return {
            **dataclasses.asdict(self),
            "prompt_tokens_per_s": self.prompt_tokens_per_s,
            "generation_tokens_per_s": self.generation_tokens_per_s,
        }


class Stopwatch:
    """Seconds since it was made, and the moment of the first token."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._first: float | None = None

    def mark_first_token(self) -> None:
        """Note the time of the first token; later calls change nothing."""
        if self._first is None:
            self._first = self.elapsed()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def first_token_s(self) -> float:
        """Seconds from the start to the first token, or to now when none has come."""
        return self.elapsed() if self._first is None else self._first


def _compiled(count: int) -> str:
    """Says that a time includes compiling; an empty string when it does not."""
    return f" while compiling {count} program{'s' * (count > 1)}" if count else ""


def peak_memory_bytes() -> int:
    """Most memory this process has held: the fullest device's on a GPU, resident memory on a CPU.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchStatistics:
    """What requests that were submitted together cost.

    Attributes:
        num_prompts: requests.
        prompt_tokens: tokens read.
        cached_tokens: of these, tokens whose KV was already in the cache.
        generation_tokens: tokens written.
        first_token_s: seconds from submission to the first token of any.
        total_s: seconds from submission to the last token of all.
        num_compilations: programs that were compiled meanwhile.
        peak_memory_bytes: see `peak_memory_bytes`.
    """

    num_prompts: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    first_token_s: float
    total_s: float
    num_compilations: int
    peak_memory_bytes: int

    def line(self) -> str:
        """The statistics in one line."""
        rate = self.generation_tokens / self.total_s if self.total_s > 0 else 0.0
        return " | ".join(
            (
                f"{self.num_prompts} prompts, {self.prompt_tokens} tokens "
                f"({self.cached_tokens} cached)",
                f"generation {self.generation_tokens} tokens in {self.total_s:.2f} s, "
                f"{rate:.1f} tok/s",
                f"first token {self.first_token_s:.3f} s{_compiled(self.num_compilations)}",
                f"peak memory {self.peak_memory_bytes / GIGABYTE:.2f} GB",
            )
        )


def batch_statistics(outputs: "Sequence[RequestOutput]", num_compilations: int) -> BatchStatistics:
    """Statistics of requests that were submitted together, from their own clocks."""
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    start = min((metric.arrival_time for metric in metrics), default=0.0)
    firsts = [metric.first_token_time for metric in metrics if metric.first_token_time is not None]
    ends = [metric.finished_time for metric in metrics if metric.finished_time is not None]
    return BatchStatistics(
        num_prompts=len(outputs),
        prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
        cached_tokens=sum(output.num_cached_tokens for output in outputs),
        generation_tokens=sum(metric.num_generated_tokens for metric in metrics),
        first_token_s=min(firsts, default=start) - start,
        total_s=max(ends, default=start) - start,
        num_compilations=num_compilations,
        peak_memory_bytes=peak_memory_bytes(),
    )
