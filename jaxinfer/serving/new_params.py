"""A trainer's parameters, checked and brought into the form that an engine takes."""

from collections.abc import Callable
from typing import Any

from jaxinfer.rollouts.conversion import MappedParams
from jaxinfer.rollouts.mapping import ParamsMapping, check_mapping, quantizing_mapping
from jaxinfer.rollouts.trees import leaves_by_path, nested
from jaxinfer.serving.driver.pauses import InFlightPolicy, check_in_flight
from jaxinfer.serving.handle import Handle
from jaxinfer.serving.runner.device_params import check_like


def new_params(handle: Handle, tree: Any, mapping: ParamsMapping | None) -> Any:
    """A trainer's parameters as `Steppable.update_params` takes them, checked.

    Raises:
        ValueError: names the first path, shape, dtype or sharding that differs.
        TypeError: it is no tree, a leaf is no array, or the mapping is none.
    """
    check_mapping(mapping)
    replicas = handle.loaded.replicas
    wanted = replicas[0].runner.wanted_params
    leaves = leaves_by_path(tree)
    if mapping is None:
        mapping = quantizing_mapping(leaves, handle.loaded.model_config)
    if mapping is not None:
        writer = MappedParams(tree, mapping)
        writer.check(wanted)
        return writer
    params = nested(leaves)
    check_like(params, wanted, placed=len(replicas) == 1)
    return params


def params_update(
    handle: Handle, tree: Any, mapping: ParamsMapping | None, in_flight: InFlightPolicy
) -> Callable[[], None]:
    """The action that swaps weights in the engine's thread; raises as `new_params`, at once."""
    check_in_flight(in_flight)
    driver, params = handle.driver, new_params(handle, tree, mapping)
    return lambda: driver.pauses.update_params(params, in_flight)
