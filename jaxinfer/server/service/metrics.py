"""Converts an engine's metrics to a message for front ends, and back."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram, Metric

_KINDS = {kind.__name__: kind for kind in (Counter, Gauge, Histogram)}


def metrics_to_message(metrics: Iterable[Metric]) -> list[list[Any]]:
    """Plain values that `metrics_from_message` makes the same of."""
    return [[type(each).__name__, dataclasses.asdict(each)] for each in metrics]


def metrics_from_message(message: Iterable[Any]) -> list[Metric]:
    """The metrics that `metrics_to_message` was given."""
    return [_KINDS[name](**fields) for name, fields in message]
