"""Floors of a server's steps, from which its metrics compute utilization."""

from jaxinfer.config import KVCacheDType
from jaxinfer.model.config import ModelConfig
from jaxinfer.planning.cost import model_cost
from jaxinfer.planning.devices import find_chip
from jaxinfer.planning.shapes import shape_of
from jaxinfer.server.telemetry.utilization import StepFloors


def step_floors(
    config: ModelConfig,
    device_kind: str,
    *,
    bytes_per_value: int = 2,
    kv_cache_dtype: KVCacheDType = "auto",
    num_devices: int = 1,
) -> StepFloors | None:
    """The floors of one replica's steps on its devices; None if their speeds were not measured."""
    chip = find_chip(device_kind)
    if chip is None:
        return None
    return StepFloors(
        cost=model_cost(shape_of(config), bytes_per_value, kv_cache_dtype=kv_cache_dtype),
        chip=chip,
        num_devices=num_devices,
    )
