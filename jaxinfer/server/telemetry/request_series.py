"""The series that a front end counts of its requests, and the place of each in its table."""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import get_args

from jaxinfer.outputs import FinishReason

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5)
_TTFT += (10, 20, 40, 80, 160, 640, 2560)
_PER_TOKEN = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1)
_PER_TOKEN += (2.5, 5, 7.5, 10, 20, 40, 80)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60)
_WHOLE += (120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


@dataclasses.dataclass(frozen=True, slots=True)
class HistogramSpec:
    """A histogram: values in each bucket, in one more without a bound, and their sum.

    Attributes:
        name: as shown, without the prefix.
        bounds: upper bounds of the buckets, ascending.
        offset: index of its first number in the table.
    """

    name: str
    help: str
    bounds: Sequence[float]
    offset: int

    @property
    def size(self) -> int:
        """The number of its entries in the table."""
        return len(self.bounds) + 2

    def observe(self, values: "memoryview[float]", value: float) -> None:
        """Count a value in a table's numbers."""
        offset = self.offset
        values[offset + bisect.bisect_left(self.bounds, value)] += 1
        values[offset + len(self.bounds) + 1] += value

    def read(self, values: Sequence[float]) -> tuple[list[int], float]:
        """The number of values in each bucket, and their sum."""
        end = self.offset + len(self.bounds) + 1
        return [int(value) for value in values[self.offset : end]], values[end]


@dataclasses.dataclass(frozen=True, slots=True)
class CounterSpec:
    """A number that only grows.

    Attributes:
        name: as shown, without the prefix and without "_total".
        labels: names and values that distinguish counters of one name.
        offset: its index in the table.
    """

    name: str
    help: str
    labels: tuple[tuple[str, str], ...]
    offset: int


COUNTERS: list[CounterSpec] = []
HISTOGRAMS: list[HistogramSpec] = []


def _next_offset() -> int:
    return len(COUNTERS) + sum(histogram.size for histogram in HISTOGRAMS)


def _counter(name: str, help: str, **labels: str) -> int:
    COUNTERS.append(CounterSpec(name, help, tuple(labels.items()), _next_offset()))
    return COUNTERS[-1].offset


def _histogram(name: str, help: str, bounds: Sequence[float]) -> HistogramSpec:
    HISTOGRAMS.append(HistogramSpec(name, help, bounds, _next_offset()))
    return HISTOGRAMS[-1]


PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens of requests that gave their first token.")
CACHED_TOKENS = _counter("prompt_tokens_cached", "Of these, tokens found in the prefix cache.")
GENERATION_TOKENS = _counter("generation_tokens", "Tokens handed out.")
SUCCESS = {
    reason: _counter("request_success", "Completions that ended.", finished_reason=reason)
    for reason in get_args(FinishReason)
}
TTFT = _histogram("time_to_first_token_seconds", "From arrival to the first token.", _TTFT)
INTER_TOKEN = _histogram(
    "inter_token_latency_seconds", "Between outputs with tokens of one request.", _PER_TOKEN
)
PER_TOKEN = _histogram(
    "request_time_per_output_token_seconds",
    "Per token after the first, a value for each request.",
    _PER_TOKEN,
)
E2E = _histogram("e2e_request_latency_seconds", "From arrival to the end.", _WHOLE)
QUEUE = _histogram("request_queue_time_seconds", "From arrival to the first step.", _WHOLE)
PREFILL = _histogram("request_prefill_time_seconds", "First step to first token.", _WHOLE)
DECODE = _histogram("request_decode_time_seconds", "First token to last.", _WHOLE)
INFERENCE = _histogram("request_inference_time_seconds", "First step to last token.", _WHOLE)
NUM_PROMPT = _histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
NUM_GENERATED = _histogram("request_generation_tokens", "Tokens of a request's answers.", _TOKENS)

SIZE = _next_offset()
"""Numbers in a table."""
LAYOUT = repr((COUNTERS, HISTOGRAMS))
"""Identifies the layout; tables with another layout are from another version."""
