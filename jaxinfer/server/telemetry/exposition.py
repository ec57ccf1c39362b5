"""Converts counts of the engine and of front ends to Prometheus's metric families."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as Family

from jaxinfer.server.telemetry import request_series as series
from jaxinfer.server.telemetry.utilization import Utilization
from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram, Metric, histogram

ENGINE_PREFIX = "jaxinfer:"
"""The prefix that `RequestCounts.metrics` puts before names."""

_HELP = {
    "num_requests_running": "Requests with a slot.",
    "num_requests_waiting": "Requests without a slot.",
    "kv_cache_usage_perc": "Share of the KV blocks that requests hold, 0 to 1.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found there.",
    "external_prefix_cache_queries": "Tokens of full blocks looked up in the tiers behind it.",
    "external_prefix_cache_hits": "Tokens whose blocks came back from a tier.",
    "prefix_tier_refused_tokens": "Tokens that a tier had, and that computing again gave sooner.",
    "prefix_tier_bytes": "Bytes copied out of the devices to a tier, and back in.",
    "prefix_tier_dropped_blocks": "Evicted blocks that the tier did not keep.",
    "prefix_tier_hit_blocks": "Blocks that the tier gave.",
    "prefix_tier_written_blocks": "Blocks that were written to files.",
    "prefix_tier_lost_blocks": "Files that could not be read, or had changed.",
    "prefix_tier_blocks": "Blocks that the tier holds.",
    "prefix_tier_capacity_blocks": "Blocks that the tier has room for.",
    "handed_over_prompts": "Prompts that decode replicas got from prefill replicas.",
    "handed_over_blocks": "KV blocks that they got.",
    "handed_over_tokens": "Tokens in these blocks.",
    "handover_seconds": "Seconds from the ends of such prompts to their first decode steps.",
    "recomputed_prompts": "Prompts that decode replicas computed, wholly or in part, after all.",
    "num_preemptions": "Preemptions: requests that lost their blocks and were resumed later.",
    "spec_decode_num_drafts": "Rows with drafts that were verified.",
    "spec_decode_num_draft_tokens": "Drafts that were verified.",
    "spec_decode_num_accepted_tokens": "Of these, drafts that became tokens of an answer.",
    "spec_decode_num_accepted_tokens_per_pos": "The same, by place behind a row's first token.",
    "num_compilations": "Programs compiled since the engine was made.",
    "compile_seconds": "Seconds that steps have waited for compilations.",
    "engine_steps": "Steps of the engine; each step of a multi-step decode counts.",
    "engine_step_seconds": "Seconds that steps took.",
    "engine_step_tokens": "Tokens that steps computed.",
    "prefill_attention_pairs": "Pairs of a prompt token and a token that it attends to.",
    "decode_context_tokens": "Tokens whose keys and values decode steps read.",
    "iteration_tokens_total": "Tokens fed by a step.",
    "expert_steps": "Steps of the model that had a token.",
    "expert_tokens": "Pairs of a token and an expert that it went through.",
    "expert_distinct": "Experts that a step's tokens went through, summed over the steps.",
    "expert_imbalance": "Tokens of the busiest expert by those of a mean one, since the start.",
    "engine_step_floor_seconds": "Least seconds of the steps: decodes by bytes, prefills by "
    "operations.",
    "decode_mbu_perc": "Share of the memory's speed that decode steps reach.",
    "prefill_mfu_perc": "Share of the peak operations that prefill steps reach.",
}
_HELP |= {spec.name: spec.help for spec in itertools.chain(series.COUNTERS, series.HISTOGRAMS)}
_OWN = frozenset(counter.name for counter in series.COUNTERS)
"""Counters of the front ends: tokens and ends of requests as delivered to clients."""

ALL_NAMES = tuple(_HELP)
"""Names of all families that can be shown, without prefix."""


def engine_metrics(metrics: Iterable[Metric]) -> Iterator[tuple[str, Metric]]:
    """An engine's metrics by name without prefix, less those that front ends count."""
    for metric in metrics:
        name = metric.name.removeprefix(ENGINE_PREFIX)
        if name not in _OWN:
            yield name, metric


def request_metrics(values: Sequence[float]) -> Iterator[tuple[str, Metric]]:
    """The metrics that front ends count, from the sums over their tables."""
    for counter in series.COUNTERS:
        value = values[counter.offset]
        yield counter.name, Counter(counter.name, value, dict(counter.labels))
    for spec in series.HISTOGRAMS:
        counts, total = spec.read(values)
        yield spec.name, histogram(spec.name, spec.bounds, counts, total)


def utilization_metrics(total: Utilization, recent: Utilization) -> Iterator[tuple[str, Metric]]:
    """Metrics of the share of the devices' speed that steps reach.

    Args:
        total: since the engine was made; its floors become counters.
        recent: since the last scrape; its shares become gauges, left out without steps.
    """
    name = "engine_step_floor_seconds"
    for kind, floor in (("decode", total.decode_floor_s), ("prefill", total.prefill_floor_s)):
        yield name, Counter(name, floor, {"kind": kind})
    for name, share in (("decode_mbu_perc", recent.mbu), ("prefill_mfu_perc", recent.mfu)):
        if share is not None:
            yield name, Gauge(name, share)


def families(
    metrics: Iterable[tuple[str, Metric]], prefix: str, labels: Sequence[tuple[str, str]]
) -> list[Family]:
    """Families of metrics, one of each name."""
    made: dict[str, Family] = {}
    kinds = {Counter: CounterMetricFamily, Gauge: GaugeMetricFamily}
    kinds |= {Histogram: HistogramMetricFamily}
    for name, metric in metrics:
        own = [*labels, *metric.labels.items()]
        family = made.get(name)
        if family is None:
            kind, help = kinds[type(metric)], _HELP.get(name, name)
            family = made[name] = kind(prefix + name, help, labels=[key for key, _ in own])
        values = [value for _, value in own]
        match family, metric:
            case HistogramMetricFamily(), Histogram():
                family.add_metric(values, list(metric.buckets.items()), metric.sum)
            case CounterMetricFamily() | GaugeMetricFamily(), Counter() | Gauge():
                family.add_metric(values, metric.value)
    return list(made.values())
