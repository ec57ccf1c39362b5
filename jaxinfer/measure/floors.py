"""The least time of a workload on a chip, from its bytes and operations.

A measured figure means little alone; beside its floor it says how much is left to gain. A step
costs at least the larger of (bytes / read bandwidth) and (operations / peak). Decoding is taken
with every sequence running from the start, which is what reads the weights the fewest times.
"""

import dataclasses
from typing import TYPE_CHECKING

from jaxinfer.measure.workloads import Workload

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Ceilings of one device, measured with the best kernel found.

    Attributes:
        name: part of JAX's device kind.
        bytes_per_s: read-only bandwidth.
        flops_per_s: bf16 matrix products.
    """

    name: str
    bytes_per_s: float
    flops_per_s: float


H200 = Chip(name="H200", bytes_per_s=4.57e12, flops_per_s=764e12)
CHIPS = (H200,)


def find_chip(device_kind: str) -> Chip | None:
    """The chip, or None if its ceilings were not measured; then there is no floor."""
    return next((chip for chip in CHIPS if chip.name in device_kind), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Bytes and operations of a model, from its shape.

    Attributes:
        weight_bytes: read once in each step: the layers and the head.
        kv_bytes_per_token: keys and values of one token, all layers.
        layer_flops_per_token: matrix products of the layers (2 operations a weight).
        head_flops_per_token: the head's product.
        attention_flops_per_pair: query times key and probability times value, all layers.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    layer_flops_per_token: int
    head_flops_per_token: int
    attention_flops_per_pair: int


def model_cost(config: "ModelConfig", bytes_per_value: int = 2) -> ModelCost:
    """Count a dense Qwen3's bytes and operations; norms and embedding rows are left out."""
    E, F, L = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    H, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    layers = L * (E * (H + 2 * K) * D + H * D * E + 3 * E * F)
    head = config.vocab_size * E
    return ModelCost(
        weight_bytes=(layers + head) * bytes_per_value,
        kv_bytes_per_token=2 * L * K * D * bytes_per_value,
        layer_flops_per_token=2 * layers,
        head_flops_per_token=2 * head,
        attention_flops_per_pair=4 * L * H * D,
    )


def decode_step_floor_s(cost: ModelCost, chip: Chip, rows: int, context_tokens: int) -> float:
    """Seconds of one decode step.

    Args:
        cost: the model's cost.
        chip: the device.
        rows: B, sequences in the step.
        context_tokens: KV tokens read, over all rows.
    """
    read = cost.weight_bytes + context_tokens * cost.kv_bytes_per_token
    flops = rows * (cost.layer_flops_per_token + cost.head_flops_per_token)
    flops += context_tokens * cost.attention_flops_per_pair
    return max(read / chip.bytes_per_s, flops / chip.flops_per_s)


def prefill_floor_s(cost: ModelCost, chip: Chip, lengths: list[int], cached: int = 0) -> float:
    """Seconds to prefill prompts of `lengths`, of which the first `cached` tokens are in pages.

    Each prompt's last token goes through the head; a token attends to itself and all earlier ones.
    """
    new_tokens = sum(length - cached for length in lengths)
    pairs = sum((length * (length + 1) - cached * (cached + 1)) // 2 for length in lengths)
    flops = new_tokens * cost.layer_flops_per_token + pairs * cost.attention_flops_per_pair
    flops += len(lengths) * cost.head_flops_per_token
    return max(cost.weight_bytes / chip.bytes_per_s, flops / chip.flops_per_s)


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
    cost = model_cost(config)
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
