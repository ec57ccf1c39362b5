"""An engine's counters and gauges as metrics of Ray, which exports those of every replica."""

from collections.abc import Sequence
from typing import Any

from jaxinfer.serving.engine.metrics import Counter, Gauge, Metric

_Series = tuple[str, tuple[tuple[str, str], ...]]


class RayMetrics:
    """Hands an engine's numbers to Ray.

    "jaxinfer:generation_tokens" is "jaxinfer_generation_tokens" there, because Ray takes no colons;
    Ray exports it with "ray_" before it, and counters with "_total" behind it. Histograms are left
    out: Ray makes them of single values, which an engine does not keep.

    Args:
        kinds: the module with Ray's `Counter` and `Gauge`: `ray.serve.metrics`, which adds the
            deployment and the replica.
    """

    def __init__(self, kinds: Any) -> None:
        self._kinds = kinds
        self._made: dict[str, Any] = {}
        self._counted: dict[_Series, float] = {}

    def update(self, metrics: Sequence[Metric]) -> None:
        """Set gauges, and count on by what counters have grown since the last call."""
        for metric in metrics:
            if isinstance(metric, Gauge):
                self._metric(metric, self._kinds.Gauge).set(metric.value, tags=dict(metric.labels))
            elif isinstance(metric, Counter):
                series = (metric.name, tuple(sorted(metric.labels.items())))
                grown = metric.value - self._counted.get(series, 0)
                self._counted[series] = metric.value
                if grown > 0:  # Ray refuses 0
                    made = self._metric(metric, self._kinds.Counter)
                    made.inc(grown, tags=dict(metric.labels))

    def _metric(self, metric: Counter | Gauge, kind: Any) -> Any:
        name = metric.name.replace(":", "_")
        if name not in self._made:
            self._made[name] = kind(name, tag_keys=tuple(sorted(metric.labels)))
        return self._made[name]
