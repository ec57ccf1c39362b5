"""Times of prefills and decode steps on one device or several: the least, and the expected.

The least follows from bytes and operations (`cost.py`). The time beyond that is fitted to recorded
runs of an H200 by `scripts/planning_overheads.py`, which writes `overheads.json`. A device that was
not measured is assumed to reach the same share of its data sheet's speeds as an H200, and to take
as long for launches and small kernels.
"""

import dataclasses
import functools
import importlib.resources
import json

from jaxinfer.config import KVCacheDType
from jaxinfer.planning.cost import (
    ModelCost,
    decode_step_bytes,
    decode_step_floor_s,
    model_cost,
    prefill_floor_s,
    prefill_products_s,
)
from jaxinfer.planning.devices import REACHED_BANDWIDTH, REACHED_MATRIX_SPEED, Chip
from jaxinfer.planning.shapes import PLAIN, ModelShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overheads:
    """Seconds beyond the floor, fitted to recorded runs; none is negative.

    Attributes:
        decode_of_floor: share of a decode step's floor that comes on top.
        decode_layer_s: of each layer of a decode step: launches and small kernels.
        decode_row_s: of each row: sampling, and reads that are not coalesced.
        decode_sum_s: of each layer on several devices, for its two sums over them.
        decode_sum_value_s: of these sums, for each row, layer and hidden value, from each of the
            other devices.
        prefill_of_floor: as for decode steps.
        prefill_launch_s: of a prefill, until its first kernel and after its last.
        prefill_value_s: of each token, layer and hidden value: norms, additions, SiLU.
        prefill_sum_s: as for decode steps.
        worst: largest deviation from a recorded time, as a share of it; None where there are no
            more times than terms that are fitted to them.

    Of other weights than plain ones, shares of floors and `worst` are fitted anew, and the rest is
    as of plain ones.
    """

    decode_of_floor: float
    decode_layer_s: float
    decode_row_s: float
    decode_sum_s: float
    decode_sum_value_s: float
    prefill_of_floor: float
    prefill_launch_s: float
    prefill_value_s: float
    prefill_sum_s: float
    worst: float | None


@functools.cache
def recorded_overheads(weights: str = PLAIN) -> Overheads | None:
    """The fitted overheads that the package ships, by `ModelShape.weights_kind`.

    None of a kind without recorded runs.
    """
    file = importlib.resources.files("jaxinfer.planning") / "overheads.json"
    overheads = json.loads(file.read_text())["overheads"]
    if weights not in overheads:
        return None
    return Overheads(**overheads[PLAIN] | overheads[weights])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Time:
    """Seconds of something that runs on a device.

    Attributes:
        floor_s: the least.
        expected_s: expected time of this engine; None if unknown.
        utilization: of `expected_s` (or else of the floor), the share in which the memory (decode)
            or the matrix units (prefill) are busy at their full speed: MBU, MFU.
    """

    floor_s: float
    expected_s: float | None
    utilization: float


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of a model on devices that share it.

    Attributes:
        shape: the model.
        chip: each device.
        num_devices: how many share the model.
        bytes_per_value: of activations, and of weights that are not quantized.
        kv_cache_dtype: of keys and values in the cache.
        pools: prompts are read alone, and no token goes through the head.
        num_groups: of the devices, that have whole experts.
        num_stages: of a pipeline, each on `num_devices`; of its times there are floors alone.
        step_tokens: most tokens of a step, by which prompts go through stages one behind the other.
        num_contexts: groups of these devices that tokens are dealt to; what they exchange is not
            counted.
    """

    shape: ModelShape
    chip: Chip
    num_devices: int = 1
    bytes_per_value: int = 2
    kv_cache_dtype: KVCacheDType = "auto"
    pools: bool = False
    num_groups: int = 1
    num_stages: int = 1
    step_tokens: int = 1
    num_contexts: int = 1

    @functools.cached_property
    def overheads(self) -> Overheads | None:
        """Of this model's weights and devices; None if only the least times are known.

        They are known of families, weights, caches and degrees of parallelism that runs were
        recorded with, on devices that have the same kernels and whose sums they can tell the time
        of.
        """
        is_plain = self.shape.weights_kind == PLAIN
        if not self.shape.is_measured or self.kv_cache_dtype != "auto":
            return None
        if self.num_stages > 1 or self.num_contexts > 1:
            return None
        if self.num_devices > 1 and not (is_plain and self.chip.linked):
            return None
        if not (is_plain or self.chip.is_hopper):
            return None
        return recorded_overheads(self.shape.weights_kind)

    @functools.cached_property
    def cost(self) -> ModelCost:
        """The cost of one device's part of the model."""
        return model_cost(
            self.shape,
            self.bytes_per_value,
            self.num_devices,
            self.kv_cache_dtype,
            pools=self.pools,
            num_groups=self.num_groups,
        )

    def decode_step(self, rows: int, context: int) -> Time:
        """A step of `rows` sequences of `context` tokens each: TPOT.

        In a pipeline each stage has a share of them at a time.
        """
        rows = -(-rows // self.num_stages)
        tokens = -(-rows * context // self.num_contexts)
        expected_s = None
        if self.overheads is not None:
            reached = decode_step_floor_s(self.cost, reachable(self.chip), rows, tokens)
            expected_s = expected_decode_s(
                reached,
                rows=rows,
                shape=self.shape,
                num_devices=self.num_devices,
                overheads=self.overheads,
            )
        return self._time(
            decode_step_floor_s(self.cost, self.chip, rows, tokens),
            expected_s,
            busy_s=decode_step_bytes(self.cost, rows, tokens) / self.chip.bytes_per_s,
        )

    def prefill(self, rows: int, context: int) -> Time:
        """A prefill of `rows` prompts of `context` tokens: TTFT of the last one."""
        lengths = [context] * rows
        steps, stages = -(-rows * context // self.step_tokens), self.num_stages
        share = (steps + stages - 1) / (steps * stages)  # of the time on one stage's devices
        expected_s = None
        if self.overheads is not None:
            expected_s = expected_prefill_s(
                prefill_floor_s(self.cost, reachable(self.chip), lengths),
                tokens=rows * context,
                shape=self.shape,
                num_devices=self.num_devices,
                overheads=self.overheads,
            )
        return self._time(
            prefill_floor_s(self.cost, self.chip, lengths) * share / self.num_contexts,
            expected_s,
            busy_s=prefill_products_s(self.cost, self.chip, lengths) / (stages * self.num_contexts),
        )

    def _time(self, floor_s: float, expected_s: float | None, *, busy_s: float) -> Time:
        seconds = floor_s if expected_s is None else expected_s
        return Time(floor_s=floor_s, expected_s=expected_s, utilization=busy_s / seconds)


def expected_decode_s(
    floor_s: float, *, rows: int, shape: ModelShape, num_devices: int, overheads: Overheads
) -> float:
    """Seconds of a decode step, from its floor at speeds that kernels reach."""
    layers = shape.num_hidden_layers
    extra = layers * overheads.decode_layer_s + rows * overheads.decode_row_s
    if num_devices > 1:
        values = rows * layers * shape.hidden_size * (num_devices - 1)
        extra += layers * overheads.decode_sum_s + values * overheads.decode_sum_value_s
    return floor_s * (1 + overheads.decode_of_floor) + extra


def expected_prefill_s(
    floor_s: float, *, tokens: int, shape: ModelShape, num_devices: int, overheads: Overheads
) -> float:
    """Seconds of a prefill, from its floor at speeds that kernels reach."""
    layers = shape.num_hidden_layers
    extra = overheads.prefill_launch_s
    extra += tokens * layers * shape.hidden_size * overheads.prefill_value_s
    extra += layers * overheads.prefill_sum_s if num_devices > 1 else 0.0
    return floor_s * (1 + overheads.prefill_of_floor) + extra


def reachable(chip: Chip) -> Chip:
    """The chip at speeds that kernels reach: measured, or the H200's share of the data sheet."""
    if chip.measured:
        return chip
    return dataclasses.replace(
        chip,
        bytes_per_s=chip.bytes_per_s * REACHED_BANDWIDTH,
        flops_per_s=chip.flops_per_s * REACHED_MATRIX_SPEED,
    )
