"""An engine's counters and gauges, and their export as metrics under vLLM's names."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import get_args

from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.outputs import FinishReason
from jaxinfer.serving.engine.step_counts import STEP_TOKEN_BOUNDS, StepCounts
from jaxinfer.serving.prefix_tiers.handover_counts import HandoverCounts
from jaxinfer.serving.prefix_tiers.tier_counts import TierCounts
from jaxinfer.serving.requests.draft_record import DraftCounts


@dataclasses.dataclass(frozen=True, slots=True)
class Counter:
    """A number that only grows while the engine lives.

    Attributes:
        name: the metric's name.
        value: the count.
        labels: labels that tell counters of one name apart.
    """

    name: str
    value: int | float
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Gauge:
    """A current value.

    Attributes:
        name: the metric's name.
        value: the value.
        labels: labels that tell gauges of one name apart.
    """

    name: str
    value: int | float
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of a value since the engine was created.

    Attributes:
        name: the metric's name.
        count: the number of observations.
        sum: the sum of all observations.
        buckets: cumulative counts by upper bound, as text; the last bound is "+Inf".
        labels: labels that tell histograms of one name apart.
    """

    name: str
    count: int
    sum: int | float
    buckets: Mapping[str, int]
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


def histogram(name: str, bounds: Sequence[float], counts: Sequence[int], total: float) -> Histogram:
    """A histogram from the number of values in each bucket.

    Args:
        bounds: upper bounds of the buckets, ascending.
        counts: the number of values in each bucket, then of values above the last bound.
    """
    sums = list(itertools.accumulate(counts))
    labels = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    return Histogram(name, sums[-1], total, dict(zip(labels, sums, strict=True)))


Metric = Counter | Gauge | Histogram


@dataclasses.dataclass(slots=True)
class RequestCounts:
    """An engine's numbers; a completion counts as a request.

    Attributes:
        prompt_tokens: tokens of processed prompts, cached ones included.
        cached_prompt_tokens: prompt tokens found in the prefix cache.
        queried_tokens: prompt tokens looked up in the prefix cache.
        generation_tokens: generated tokens read by the host.
        finished: ended requests by finish reason.
        running: requests with a slot.
        waiting: requests without a slot.
        used_blocks: KV blocks allocated to requests.
        usable_blocks: all usable KV blocks.
        tiers: of the tiers behind the prefix cache; None without any.
        handovers: of replicas that compute prompts for others; None without any.
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
    steps: StepCounts = dataclasses.field(default_factory=StepCounts)
    drafts: DraftCounts = dataclasses.field(default_factory=DraftCounts)
    tiers: TierCounts | None = None
    handovers: HandoverCounts | None = None

    def add(self, other: "RequestCounts") -> None:
        """Add another replica's numbers."""
        for field in dataclasses.fields(self):
            if field.name not in ("finished", "steps", "drafts", "tiers", "handovers"):
                total = getattr(self, field.name) + getattr(other, field.name)
                setattr(self, field.name, total)
        for reason, count in other.finished.items():
            self.finished[reason] += count
        self.steps = self.steps.plus(other.steps)
        self.drafts = self.drafts.plus(other.drafts)
        if self.tiers is None or other.tiers is None:
            self.tiers = self.tiers or other.tiers
        else:
            self.tiers = self.tiers.plus(other.tiers)

    def take_handovers(self, handovers: HandoverCounts) -> None:
        """Add what replicas handed over, and count each prompt once that two of them had."""
        self.handovers = dataclasses.replace(handovers)
        self.prompt_tokens -= handovers.job_tokens
        self.queried_tokens -= handovers.job_tokens
        self.cached_prompt_tokens -= handovers.cached_job_tokens
        for reason in self.finished:
            self.finished[reason] -= handovers.ended_jobs.get(reason, 0)

    def metrics(self, *, num_compilations: int, compile_seconds: float) -> list[Metric]:
        """All numbers as metrics under vLLM's names, with this project's prefix."""
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
            "spec_decode_num_drafts": self.drafts.num_rows,
            "spec_decode_num_draft_tokens": self.drafts.num_drafted,
            "spec_decode_num_accepted_tokens": self.drafts.num_accepted,
            "num_compilations": num_compilations,
            "compile_seconds": compile_seconds,
        }
        metrics: list[Metric] = [Gauge(f"jaxinfer:{name}", v) for name, v in gauges.items()]
        metrics += [Counter(f"jaxinfer:{name}", v) for name, v in counters.items()]
        metrics += [
            Counter("jaxinfer:request_success", count, {"finished_reason": reason})
            for reason, count in self.finished.items()
        ]
        metrics += [
            Counter("jaxinfer:spec_decode_num_accepted_tokens_per_pos", n, {"position": str(place)})
            for place, n in enumerate(self.drafts.num_accepted_at)
        ]
        metrics += _step_metrics(self.steps) + _tier_metrics(self.tiers)
        return metrics + _handover_metrics(self.handovers)


def expert_metrics(experts: ExpertStatistics | None) -> list[Metric]:
    """How experts were used, as metrics of each layer; not of each expert, which are too many."""
    if experts is None:
        return []
    columns = (experts.load.sum(axis=1), experts.num_distinct, experts.imbalance)
    metrics: list[Metric] = [Counter("jaxinfer:expert_steps", experts.steps)]
    for layer, tokens, distinct, imbalance in zip(experts.layers, *columns, strict=True):
        labels = {"layer": str(layer)}
        metrics += [
            Counter("jaxinfer:expert_tokens", int(tokens), labels),
            Counter("jaxinfer:expert_distinct", int(distinct), labels),
            Gauge("jaxinfer:expert_imbalance", float(imbalance), labels),
        ]
    return metrics


def _tier_metrics(tiers: TierCounts | None) -> list[Metric]:
    if tiers is None:
        return []
    host, disk = {"tier": "host"}, {"tier": "disk"}
    out, back = host | {"direction": "out"}, host | {"direction": "in"}
    return [
        Counter("jaxinfer:external_prefix_cache_queries", tiers.queried_tokens),
        Counter("jaxinfer:external_prefix_cache_hits", tiers.hit_tokens),
        Counter("jaxinfer:prefix_tier_refused_tokens", tiers.refused_tokens, host),
        Counter("jaxinfer:prefix_tier_bytes", tiers.bytes_out, out),
        Counter("jaxinfer:prefix_tier_bytes", tiers.bytes_in, back),
        Counter("jaxinfer:prefix_tier_dropped_blocks", tiers.dropped_blocks, host),
        Gauge("jaxinfer:prefix_tier_blocks", tiers.held_blocks, host),
        Gauge("jaxinfer:prefix_tier_capacity_blocks", tiers.capacity_blocks, host),
        Counter("jaxinfer:prefix_tier_hit_blocks", tiers.next_hits, disk),
        Counter("jaxinfer:prefix_tier_written_blocks", tiers.disk_written, disk),
        Counter("jaxinfer:prefix_tier_dropped_blocks", tiers.disk_dropped, disk),
        Counter("jaxinfer:prefix_tier_lost_blocks", tiers.disk_lost, disk),
        Gauge("jaxinfer:prefix_tier_blocks", tiers.disk_blocks, disk),
        Gauge("jaxinfer:prefix_tier_capacity_blocks", tiers.disk_capacity_blocks, disk),
    ]


def _handover_metrics(handovers: HandoverCounts | None) -> list[Metric]:
    if handovers is None:
        return []
    return [
        Counter("jaxinfer:handed_over_prompts", handovers.prompts),
        Counter("jaxinfer:handed_over_blocks", handovers.blocks),
        Counter("jaxinfer:handed_over_tokens", handovers.tokens),
        Counter("jaxinfer:handover_seconds", handovers.seconds),
        Counter("jaxinfer:recomputed_prompts", handovers.recomputed_prompts),
    ]


def _step_metrics(steps: StepCounts) -> list[Metric]:
    by_kind = {
        "engine_steps": (steps.prefill_steps, steps.decode_steps),
        "engine_step_seconds": (steps.prefill_seconds, steps.decode_seconds),
        "engine_step_tokens": (steps.prefill_tokens, steps.decode_tokens),
    }
    metrics: list[Metric] = [
        Counter(f"jaxinfer:{name}", value, {"kind": kind})
        for name, values in by_kind.items()
        for kind, value in zip(("prefill", "decode"), values, strict=True)
    ]
    metrics += [
        Counter("jaxinfer:prefill_attention_pairs", steps.prefill_pairs),
        Counter("jaxinfer:decode_context_tokens", steps.decode_context_tokens),
    ]
    name, counts = "jaxinfer:iteration_tokens_total", steps.step_tokens
    return [*metrics, histogram(name, STEP_TOKEN_BOUNDS, counts, steps.step_tokens_sum)]
