"""The use of experts as lines for people, and as values for JSON."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxinfer.expert_statistics import ExpertStatistics
from jaxinfer.profiling.figures import aligned, share_text

_HOTTEST = 4


def expert_lines(experts: ExpertStatistics) -> Iterator[str]:
    """A table of the layers, and what the whole model's experts have in common."""
    num_experts = experts.load.shape[1]
    yield f"\nexperts: {num_experts} in each of {len(experts.layers)} layers; a step is a text"
    rows = [("layer", "imbalance", "distinct", "unused", "hottest experts")]
    columns = (experts.imbalance, experts.distinct, experts.load)
    for layer, imbalance, distinct, load in zip(experts.layers, *columns, strict=True):
        unused = str(int((load == 0).sum()))
        rows.append(
            (str(layer), f"{imbalance:.2f}", f"{distinct:.1f}", unused, ", ".join(_hottest(load)))
        )
    yield from aligned(rows, left=0, last_left=True)


def _hottest(load: np.ndarray) -> Iterator[str]:
    """The experts with the most tokens, and their share of all that go through the layer."""
    for expert in np.argsort(-load, kind="stable")[:_HOTTEST].tolist():
        yield f"{expert} ({share_text(load[expert] / max(load.sum(), 1), 1)})"


def expert_values(experts: ExpertStatistics) -> dict[str, Any]:
    """All of it as JSON-like values: a list by layer of each."""
    return {
        "layers": list(experts.layers),
        "steps": experts.steps,
        "imbalance": experts.imbalance.tolist(),
        "distinct": experts.distinct.tolist(),
        "load": experts.load.tolist(),
    }
