"""Utilization of a device's speed: MBU of decode steps and MFU of prefill steps."""

import dataclasses
from collections.abc import Mapping

from jaxinfer.planning.cost import ModelCost, products_s
from jaxinfer.planning.devices import Chip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepFloors:
    """The least times of a replica's steps, from its model's shape and its devices' speeds.

    Attributes:
        cost: of the whole model.
        chip: each of the replica's devices.
        num_devices: of the replica.
    """

    cost: ModelCost
    chip: Chip
    num_devices: int = 1

    def decode_seconds(self, steps: float, tokens: float, context_tokens: float) -> float:
        """Least seconds of decode steps' reads, of as many experts as tokens use at random.

        Args:
            steps: number of steps.
            tokens: that all steps fed.
            context_tokens: that they attended to, summed over the steps.
        """
        weights = steps * self.cost.bytes_read(tokens / steps) if steps else 0.0
        read = weights + context_tokens * self.cost.kv_bytes_per_token
        return read / self.chip.bytes_per_s / self.num_devices

    def prefill_seconds(self, tokens: float, pairs: float) -> float:
        """Least seconds of prefills' operations; tokens attend to `pairs` tokens in all."""
        cost = self.cost
        flops = tokens * cost.layer_flops_per_token + pairs * cost.attention_flops_per_pair
        return products_s(cost, self.chip, flops, tokens) / self.num_devices


@dataclasses.dataclass(frozen=True, slots=True)
class Utilization:
    """Seconds that steps took and the least they could have taken, for decodes and prefills."""

    decode_s: float = 0.0
    decode_floor_s: float = 0.0
    prefill_s: float = 0.0
    prefill_floor_s: float = 0.0

    def since(self, earlier: "Utilization") -> "Utilization":
        """The difference to an `earlier` state."""
        return Utilization(
            self.decode_s - earlier.decode_s,
            self.decode_floor_s - earlier.decode_floor_s,
            self.prefill_s - earlier.prefill_s,
            self.prefill_floor_s - earlier.prefill_floor_s,
        )

    @property
    def mbu(self) -> float | None:
        """The share of the memory's speed that decode steps reached; None if there were none."""
        return self.decode_floor_s / self.decode_s if self.decode_s > 0 else None

    @property
    def mfu(self) -> float | None:
        """The share of the operations a second that prefill steps reached; None without any."""
        return self.prefill_floor_s / self.prefill_s if self.prefill_s > 0 else None


def utilization(floors: StepFloors, counters: Mapping[tuple[str, str], float]) -> Utilization:
    """Utilization since the engine was made.

    Args:
        floors: of one replica; counters may be sums over several.
        counters: by name without prefix and label ("" for none), as `RequestCounts.metrics` has
            them.
    """
    return Utilization(
        counters["engine_step_seconds", "decode"],
        floors.decode_seconds(
            counters["engine_steps", "decode"],
            counters["engine_step_tokens", "decode"],
            counters["decode_context_tokens", ""],
        ),
        counters["engine_step_seconds", "prefill"],
        floors.prefill_seconds(
            counters["engine_step_tokens", "prefill"], counters["prefill_attention_pairs", ""]
        ),
    )
