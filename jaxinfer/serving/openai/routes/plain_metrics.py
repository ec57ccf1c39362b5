"""The engine's counts as Prometheus' text."""

import itertools
from collections.abc import Sequence

from jaxinfer.serving.engine.metrics import Counter, Histogram, Metric


def prometheus_text(metrics: Sequence[Metric]) -> bytes:
    """One line for each metric, after a line with the type of those of its name."""
    lines = []
    plain = [metric for metric in metrics if not isinstance(metric, Histogram)]
    for name, group in itertools.groupby(plain, lambda metric: metric.name):
        of_name = list(group)
        is_counter = isinstance(of_name[0], Counter)
        full = f"{name}_total" if is_counter else name
        lines.append(f"# TYPE {full} {'counter' if is_counter else 'gauge'}")
        for metric in of_name:
            labels = ",".join(f'{key}="{value}"' for key, value in metric.labels.items())
            lines.append(
                f"{full}{{{labels}}} {metric.value}" if labels else f"{full} {metric.value}"
            )
    return ("\n".join(lines) + "\n").encode()
