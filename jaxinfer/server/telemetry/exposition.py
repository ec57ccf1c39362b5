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
    "num_preemptions": "Requests that lost their blocks for a time.",
    "num_compilations": "Programs compiled since the engine was made.",
    "compile_seconds": "Seconds that steps have waited for compilations.",
    "engine_steps": "Steps of the engine; each step of a multi-step decode counts.",
    "engine_step_seconds": "Seconds that steps took.",
    "engine_step_tokens": "Tokens that steps computed.",
    "prefill_attention_pairs": "Pairs of a prompt token and a token that it attends to.",
    "decode_context_tokens": "Tokens whose keys and values decode steps read.",
    "iteration_tokens_total": "Tokens fed by a step.",
}
_OWN = frozenset(counter.name for counter in series.COUNTERS)
"""Counters of the front ends: tokens and ends that clients were told of."""


def engine_families(metrics: Iterable[Metric], labels: Sequence[tuple[str, str]]) -> list[Family]:
    """Families of an engine's counts, without the names that front ends count.

    Args:
        metrics: as `AsyncLLM.get_metrics` returns them.
        labels: names and values that every series gets.
    """
    families: dict[str, Family] = {}
    for metric in metrics:
        name = metric.name.removeprefix(ENGINE_PREFIX)
        if name not in _OWN:
            _add(families, name, _HELP.get(name, name), metric, labels)
    return list(families.values())


def request_families(
    values: Sequence[float], labels: Sequence[tuple[str, str]]
) -> Iterator[Family]:
    """Families of what front ends count, from the sums over their tables."""
    families: dict[str, Family] = {}
    for counter in series.COUNTERS:
        metric = Counter(counter.name, values[counter.offset], dict(counter.labels))
        _add(families, counter.name, counter.help, metric, labels)
    for spec in series.HISTOGRAMS:
        counts, total = spec.read(values)
        metric = histogram(spec.name, spec.bounds, counts, total)
        _add(families, spec.name, spec.help, metric, labels)
    yield from families.values()


def utilization_families(
    total: Utilization, recent: Utilization, labels: Sequence[tuple[str, str]]
) -> list[Family]:
    """Families of how much of the devices' speed steps reach.

    Args:
        total: since the engine was made; its floors become counters.
        recent: since the last scrape; its shares become gauges, left out without steps.
        labels: names and values that every series gets.
    """
    families: dict[str, Family] = {}
    for kind, floor in (("decode", total.decode_floor_s), ("prefill", total.prefill_floor_s)):
        metric = Counter("engine_step_floor_seconds", floor, {"kind": kind})
        help = "Least seconds of the steps: decodes by bytes, prefills by operations."
        _add(families, metric.name, help, metric, labels)
    for name, share, help in (
        ("decode_mbu_perc", recent.mbu, "Share of the memory's speed that decode steps reach."),
        ("prefill_mfu_perc", recent.mfu, "Share of the peak operations that prefill steps reach."),
    ):
        if share is not None:
            _add(families, name, help, Gauge(name, share), labels)
    return list(families.values())


def _add(
    families: dict[str, Family],
    name: str,
    help: str,
    metric: Metric,
    labels: Sequence[tuple[str, str]],
) -> None:
    """Add a series to the family of its name."""
    own = [*labels, *metric.labels.items()]
    family = families.get(name)
    if family is None:
        kinds = {
            Counter: CounterMetricFamily,
            Gauge: GaugeMetricFamily,
            Histogram: HistogramMetricFamily,
        }
        family = families[name] = kinds[type(metric)](name, help, labels=[key for key, _ in own])
    values = [value for _, value in own]
    match family, metric:
        case HistogramMetricFamily(), Histogram():
            family.add_metric(values, list(metric.buckets.items()), metric.sum)
        case CounterMetricFamily() | GaugeMetricFamily(), Counter() | Gauge():
            family.add_metric(values, metric.value)


def with_prefix(families: Iterable[Family], prefix: str) -> Iterator[Family]:
    """The same families, with `prefix` before the names of families and samples."""
    for family in families:
        family.name = prefix + family.name
        family.samples = [sample._replace(name=prefix + sample.name) for sample in family.samples]
        yield family


def all_names() -> list[str]:
    """Names of all families that can be shown, without prefix."""
    of_requests = [spec.name for spec in itertools.chain(series.COUNTERS, series.HISTOGRAMS)]
    own = ["engine_step_floor_seconds", "decode_mbu_perc", "prefill_mfu_perc"]
    return list(dict.fromkeys([*_HELP, *of_requests, *own]))
