"""Experts moved between devices by their load, between requests."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxinfer.model.expert_placement import balance, imbalance
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.runner.experts.placed_experts import MovedExperts, PlacedExperts


@dataclass(frozen=True)
class RebalancedExperts:
    """What moving experts gained, for the loads that it was done for.

    Attributes:
        before: tokens of the fullest group of devices over those of the mean, layers added up.
        after: the same with the experts as they lie now; 1.0 is the least.
        num_moved: slots, of all layers, that hold another expert than before.
    """

    before: float
    after: float
    num_moved: int


class ExpertBalance:
    """What `LLM.rebalance_experts` does.

    Args:
        handle: of the engine.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def check(self) -> PlacedExperts:
        """The experts' places.

        Raises:
            ValueError: the engine has no `enable_eplb`.
        """
        placed = self._handle.loaded.placed_experts
        if placed is None:
            raise ValueError("rebalance_experts needs an engine with enable_eplb=True")
        return placed

    def rebalance(self, load: Any) -> RebalancedExperts:
        """Move experts so that these loads would have been even; keys and values stay valid.

        Args:
            load: tokens of each expert, `[layers, experts]`, of all layers or of those that have
                experts.

        Raises:
            ValueError: the engine has no `enable_eplb`, or the loads have another shape or are
                negative.
            RuntimeError: a request is unfinished, or the weights sleep. Nothing has changed.
            StepError: the device failed while it moved; the engine is dead.
        """
        placed = self.check()
        own = _own_layers(np.asarray(load), placed)
        slots = balance(own, placed.num_groups, placed.num_redundant)
        before, after = (imbalance(own, each, placed.num_groups) for each in (placed.slots, slots))
        moved = int((placed.slots != slots).sum())
        if after >= before:
            return RebalancedExperts(before, before, 0)
        driver, (replica,) = self._handle.driver, self._handle.loaded.replicas

        def move() -> None:
            driver.pauses.check_idle()
            runner = replica.runner
            runner.update_params(MovedExperts(placed, runner.weights.params, slots))

        driver.call(move)
        return RebalancedExperts(before, after, moved)


def _own_layers(load: np.ndarray, placed: PlacedExperts) -> np.ndarray:
    """The loads of the layers with experts."""
    if load.shape == (placed.num_layers, placed.num_experts):
        load = load[placed.layers]
    wanted = (len(placed.layers), placed.num_experts)
    if load.shape != wanted:
        raise ValueError(
            f"load must be [layers, experts], here {list(wanted)}, got {list(load.shape)}"
        )
    return load
