"""Statistics of a command's run, its speed and memory: one line on stderr, or fields of JSON."""

import dataclasses
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxinfer import LLM

GIGABYTE = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStatistics:
    """Time and memory of one run, as its caller measures them.

    Attributes:
        prompt_tokens: tokens read.
        cached_tokens: of these, tokens whose KV was already in the cache.
        generation_tokens: tokens written.
        finish_reason: why the answer ended; None if it was left early.
        first_token_s: seconds from submission to the first token.
        first_compile_s: seconds of `first_token_s` spent compiling.
        total_s: seconds from submission to the last token.
        num_compilations: programs that were compiled within `total_s`.
        compile_s: seconds of `total_s` spent compiling.
        peak_memory_bytes: see `peak_memory_bytes`.
    """

    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    finish_reason: str | None
    first_token_s: float
    first_compile_s: float
    total_s: float
    num_compilations: int
    compile_s: float
    peak_memory_bytes: int

    @property
    def prompt_tokens_per_s(self) -> float:
        """Tokens read a second, up to the first token, compiling left out; 0 if unknown."""
        seconds = self.first_token_s - self.first_compile_s
        return self.prompt_tokens / seconds if seconds > 0 else 0.0

    @property
    def generation_tokens_per_s(self) -> float:
        """Tokens written a second after the first, compiling left out; 0 if unknown."""
        compiling = self.compile_s - self.first_compile_s
        seconds = self.total_s - self.first_token_s - compiling
        return max(0, self.generation_tokens - 1) / seconds if seconds > 0 else 0.0

    def line(self) -> str:
        """The statistics in one line."""
        cached = f" ({self.cached_tokens} cached)" if self.cached_tokens else ""
        memory = self.peak_memory_bytes
        parts = [
            f"prompt {count(self.prompt_tokens, 'token')}{cached}{_rate(self.prompt_tokens_per_s)}",
            f"generation {count(self.generation_tokens, 'token')}"
            f"{_rate(self.generation_tokens_per_s)}",
            *_compiled(self.num_compilations, self.compile_s),
            f"first token {self.first_token_s:.3f} s",
            *([f"ended by {self.finish_reason}"] if self.finish_reason else []),
            *([f"peak memory {memory / GIGABYTE:.2f} GB"] if memory else []),
        ]
        return " | ".join(parts)


class Stopwatch:
    """Seconds and compilations of an engine since this was made, and up to the first token."""

    def __init__(self, llm: "LLM") -> None:
        self._llm = llm
        self._num_compilations, self._compile_s = llm.num_compilations, llm.compile_seconds
        self._start = time.perf_counter()
        self._first: tuple[float, float] | None = None

    def mark_first_token(self) -> None:
        """Note the time of the first token; later calls change nothing."""
        if self._first is None:
            self._first = self.elapsed(), self.compile_s()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def num_compilations(self) -> int:
        """Programs compiled since the start."""
        return self._llm.num_compilations - self._num_compilations

    def compile_s(self) -> float:
        """Seconds spent compiling since the start."""
        return self._llm.compile_seconds - self._compile_s

    def first_token_s(self) -> float:
        """Seconds from the start to the first token, or to now when none has come."""
        return self._first[0] if self._first else self.elapsed()

    def first_compile_s(self) -> float:
        """Seconds spent compiling before the first token."""
        return self._first[1] if self._first else self.compile_s()


def count(number: int, noun: str) -> str:
    """A number and a noun in the right form: "1 token", "2 tokens"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _rate(tokens_per_s: float) -> str:
    """A rate as the end of a part of the line; empty if it is unknown."""
    return f", {tokens_per_s:.1f} tok/s" if tokens_per_s > 0 else ""


def _compiled(number: int, seconds: float) -> list[str]:
    """The time spent compiling, as a part of the line; empty if there was none."""
    return [f"compiling {count(number, 'program')}, {seconds:.1f} s"] if number else []


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchStatistics:
    """Time and memory of requests that were submitted together.

    Attributes:
        num_prompts: requests.
        prompt_tokens: tokens read.
        cached_tokens: of these, tokens whose KV was already in the cache.
        generation_tokens: tokens written.
        first_token_s: seconds from submission to the first token of any.
        total_s: seconds from submission to the last token of all.
        num_cut: answers that ended with "length".
        num_compilations: programs that were compiled meanwhile.
        compile_s: seconds spent compiling.
        peak_memory_bytes: see `peak_memory_bytes`.
    """

    num_prompts: int
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    first_token_s: float
    total_s: float
    num_cut: int
    num_compilations: int
    compile_s: float
    peak_memory_bytes: int

    def line(self) -> str:
        """The statistics in one line."""
        seconds = self.total_s - self.compile_s
        rate = self.generation_tokens / seconds if seconds > 0 else 0.0
        cut = f"{self.num_cut} of {self.num_prompts} cut at their maximum length"
        parts = [
            f"{count(self.num_prompts, 'prompt')}, {count(self.prompt_tokens, 'token')} "
            f"({self.cached_tokens} cached)",
            f"generation {count(self.generation_tokens, 'token')} in {self.total_s:.2f} s, "
            f"{rate:.1f} tok/s",
            *_compiled(self.num_compilations, self.compile_s),
            f"first token {self.first_token_s:.3f} s",
            *([cut] if self.num_cut else []),
            f"peak memory {self.peak_memory_bytes / GIGABYTE:.2f} GB",
        ]
        return " | ".join(parts)
