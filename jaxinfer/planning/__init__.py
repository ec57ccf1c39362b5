"""Memory and speed of a model on a device, from sizes alone: no GPU, no weights, no JAX."""

from jaxinfer.planning.devices import DEVICES, Chip
from jaxinfer.planning.memory import MemoryPlan
from jaxinfer.planning.model_plan import BatchPlan, Plan, plan
from jaxinfer.planning.named_shapes import NAMED_SHAPES
from jaxinfer.planning.operations import Operation
from jaxinfer.planning.shapes import ModelShape
from jaxinfer.planning.times import Time

__all__ = [
    "DEVICES",
    "NAMED_SHAPES",
    "BatchPlan",
    "Chip",
    "MemoryPlan",
    "ModelShape",
    "Operation",
    "Plan",
    "Time",
    "plan",
]
