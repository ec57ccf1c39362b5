"""An engine's metrics on their way to a front end."""

from collections.abc import Iterable
from typing import Any

from jaxinfer.serving.engine.metrics import Counter, Gauge, Metric


def metrics_to_message(metrics: Iterable[Metric]) -> list[list[Any]]:
    """Plain values that `metrics_from_message` makes the same of."""
    return [
        [isinstance(each, Counter), each.name, each.value, dict(each.labels)] for each in metrics
    ]


def metrics_from_message(message: Iterable[Any]) -> list[Metric]:
    """The metrics that `metrics_to_message` was given."""
    return [
        (Counter if is_counter else Gauge)(name, value, labels)
        for is_counter, name, value, labels in message
    ]
