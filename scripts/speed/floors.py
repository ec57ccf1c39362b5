"""The floor of a workload: its least possible time on a chip, from its bytes and operations.

A measured figure means little alone; beside its floor it says how much is left to gain. Decoding is
taken with every sequence running from the start, which is what reads the weights the fewest times.
"""

import dataclasses
from typing import TYPE_CHECKING

from jaxinfer.planning.cost import ModelCost, decode_step_floor_s, model_cost, prefill_floor_s
from jaxinfer.planning.devices import Chip
from jaxinfer.planning.shapes import shape_of
from scripts.speed.workloads import Workload

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Floor:
    """Least seconds of a workload; on several devices, as if each did an equal share.

    Replicas each read all weights, so their own floor is higher; all ways to use the devices are
    compared with this one.

    Attributes:
        prefill_s: all prompts.
        decode_s: all tokens after the first of each answer.
        decode_shared_s: the same if KV that several sequences share (a common prefix, a group's
            prompt) is read once a step for all of them.
    """

    prefill_s: float
    decode_s: float
    decode_shared_s: float

    @property
    def total_s(self) -> float:
        """Prefill and decoding, every sequence reading all of its own context."""
        return self.prefill_s + self.decode_s

    @property
    def total_shared_s(self) -> float:
        """Prefill and decoding, shared KV read once a step."""
        return self.prefill_s + self.decode_shared_s


def workload_floor(
    config: "ModelConfig",
    chip: Chip,
    workload: Workload,
    *,
    warm: bool = False,
    num_devices: int = 1,
) -> Floor:
    """The floor of a workload.

    Args:
        config: the model's shape.
        chip: a device's ceilings.
        workload: lengths and sharing.
        warm: the prompts' shared tokens are in the prefix cache already.
        num_devices: chips that share the work.
    """
    cost = model_cost(shape_of(config))
    return Floor(
        prefill_s=_prefill_s(cost, chip, workload, warm) / num_devices,
        decode_s=_decode_s(cost, chip, workload, shared=False) / num_devices,
        decode_shared_s=_decode_s(cost, chip, workload, shared=True) / num_devices,
    )


def _prefill_s(cost: ModelCost, chip: Chip, workload: Workload, warm: bool) -> float:
    lengths = [len(prompt) for prompt in workload.prompts]
    shared = workload.shared_tokens
    if not shared:
        return prefill_floor_s(cost, chip, lengths)
    first = 0.0 if warm else prefill_floor_s(cost, chip, [shared])
    return first + prefill_floor_s(cost, chip, lengths, cached=shared)


def _decode_s(cost: ModelCost, chip: Chip, workload: Workload, *, shared: bool) -> float:
    seconds = 0.0
    samples = workload.num_samples
    pairs = list(zip(map(len, workload.prompts), workload.max_tokens, strict=True))
    for step in range(1, max(workload.max_tokens)):
        running = [length for length, output in pairs if output > step]
        written = len(running) * samples * step
        if not shared:
            context = sum(running) * samples + written
        elif samples > 1:
            context = sum(running) + written
        else:
            own = sum(length - workload.shared_tokens for length in running)
            context = own + workload.shared_tokens * bool(running) + written
        seconds += decode_step_floor_s(cost, chip, len(running) * samples, context)
    return seconds
