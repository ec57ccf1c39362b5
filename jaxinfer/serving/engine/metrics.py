"""What an engine counts while it runs, and the same as metrics under vLLM's names."""

import dataclasses
from collections.abc import Mapping
from typing import get_args

from jaxinfer.outputs import FinishReason


@dataclasses.dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows while the engine lives.

    Attributes:
        name: what is counted.
        value: how much.
        labels: what tells counters of one name apart.
    """

    name: str
    value: int | float
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Gauge:
    """A number at this moment.

    Attributes:
        name: what is measured.
        value: how much.
        labels: what tells gauges of one name apart.
    """

    name: str
    value: int | float
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


Metric = Counter | Gauge


@dataclasses.dataclass(slots=True)
class EngineCounts:
    """An engine's numbers; a completion counts as a request.

    Attributes:
        prompt_tokens: of prompts that have run, tokens from the prefix cache included.
        cached_prompt_tokens: of these, those from the prefix cache.
        queried_tokens: prompt tokens that were looked up there.
        generation_tokens: tokens that were sampled and read.
        finished: requests that ended, by reason.
        preemptions: requests that lost their blocks for a time.
        running: requests with a slot.
        waiting: requests without one.
        used_blocks: KV blocks that requests hold.
        usable_blocks: KV blocks that there are.
    """

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    queried_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[FinishReason, int] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0)
    )
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    usable_blocks: int = 0

    def add(self, other: "EngineCounts") -> None:
        """Add another replica's."""
        for field in dataclasses.fields(self):
            if field.name != "finished":
                total = getattr(self, field.name) + getattr(other, field.name)
                setattr(self, field.name, total)
        for reason, count in other.finished.items():
            self.finished[reason] += count

    def metrics(self, *, num_compilations: int, compile_seconds: float) -> list[Metric]:
        """All of it under vLLM's names, with this project's prefix.

        Args:
            num_compilations: programs compiled since the engine was made.
            compile_seconds: seconds that steps have waited for that.
        """
        gauges = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            "kv_cache_usage_perc": self.used_blocks / max(self.usable_blocks, 1),
        }
        counters = {
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "prefix_cache_queries": self.queried_tokens,
            "prefix_cache_hits": self.cached_prompt_tokens,
            "num_preemptions": self.preemptions,
            "num_compilations": num_compilations,
            "compile_seconds": compile_seconds,
        }
        metrics: list[Metric] = [Gauge(f"jaxinfer:{name}", v) for name, v in gauges.items()]
        metrics += [Counter(f"jaxinfer:{name}", v) for name, v in counters.items()]
        return metrics + [
            Counter("jaxinfer:request_success", count, {"finished_reason": reason})
            for reason, count in self.finished.items()
        ]
