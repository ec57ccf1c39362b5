"""Experts moved between devices by their load, between requests."""

from typing import Any

import numpy as np

from jaxinfer.expert_statistics import RebalancedExperts
from jaxinfer.model.expert_placement import balance, imbalance
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.runner.experts.placed_experts import MovedExperts, PlacedExperts


def rebalance(handle: Handle, load: Any) -> RebalancedExperts:
    """Move experts so that these loads would have been even; keys and values stay valid.

    Only in the engine's thread.

    Args:
        handle: of the engine.
        load: tokens of each expert, `[layers, experts]`, of all layers or of those that have
            experts; None takes what the engine has counted since the last reset.

    Raises:
        ValueError: the engine has no `enable_eplb`; or the loads have another shape or are
            negative; or they are None, and the engine has no `expert_statistics`.
        RuntimeError: a request is unfinished, or a part of the engine sleeps. Nothing has changed.
        StepError: the device failed while it moved; the engine is dead.
    """
    placed = handle.loaded.placed_experts
    if placed is None:
        raise ValueError("rebalance_experts needs an engine with enable_eplb=True")
    if load is None:
        load = handle.loaded.experts.read(reset=False).load
    own = _own_layers(load, placed)
    handle.driver.pauses.check_idle()
    slots = balance(own, placed.num_groups, placed.num_redundant)
    before, after = (imbalance(own, each, placed.num_groups) for each in (placed.slots, slots))
    if after >= before:
        return RebalancedExperts(before, before, 0)
    num_moved = int((placed.slots != slots).sum())
    (replica,) = handle.loaded.replicas
    runner = replica.runner
    runner.update_params(MovedExperts(placed, runner.weights.params, slots))
    return RebalancedExperts(before, after, num_moved)


def _own_layers(load: Any, placed: PlacedExperts) -> np.ndarray:
    """The loads of the layers with experts, float64."""
    wanted = [len(placed.layers), placed.num_experts]
    try:
        found = np.asarray(load, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"load must be [layers, experts], here {wanted}, all of them numbers"
        ) from None
    if found.shape == (placed.num_layers, placed.num_experts):
        found = found[placed.layers]
    if list(found.shape) != wanted:
        raise ValueError(f"load must be [layers, experts], here {wanted}, got {list(found.shape)}")
    return found
