"""An engine's metrics on their way to a front end."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram, Metric

_KINDS = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def metrics_to_message(metrics: Iterable[Metric]) -> list[list[Any]]:
    """Plain values, from which `metrics_from_message` makes equal metrics."""
    return [[_NAMES[type(each)], dataclasses.asdict(each)] for each in metrics]


def metrics_from_message(message: Iterable[Any]) -> list[Metric]:
    """The metrics that `metrics_to_message` was given."""
    return [_KINDS[name](**fields) for name, fields in message]
