"""The cost of a step: the least bytes and operations, and so its least time on a chip.

A step takes at least the larger of (bytes / read bandwidth) and (operations / matrix speed).
"""

import dataclasses
import itertools
import math

from jaxinfer.config import KVCacheDType
from jaxinfer.model.projections import PROJECTIONS
from jaxinfer.planning.devices import Chip
from jaxinfer.planning.shapes import ATTENTION, MLP, ModelShape


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Bytes and operations of a model, from its shape; of one device's part if it is split.

    Attributes:
        weight_bytes: read once in each step: the layers and the head, experts left out.
        kv_bytes_per_token: keys and values of one token, all layers.
        layer_flops_per_token: matrix products of the layers (2 operations a weight).
        code_flops_per_token: of these, products of codes by inputs that are codes, too.
        codes: these are of: "fp8" or "int8".
        head_flops_per_token: the head's product.
        attention_flops_per_pair: query times key and probability times value, all layers.
        expert_bytes: of one expert of every layer, as far as the device has it.
        num_experts: of a layer; 0 for a dense model.
        experts_per_token: experts that each token is routed to.
        num_groups: of devices that have whole experts; the counts are of the one that reads most.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    layer_flops_per_token: int
    head_flops_per_token: int
    attention_flops_per_pair: int
    expert_bytes: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    num_groups: int = 1
    code_flops_per_token: int = 0
    codes: str = "fp8"

    def bytes_read(self, tokens: float) -> float:
        """Bytes of weights that a step of this number of tokens reads; see `most_experts`."""
        chosen = self.num_experts, self.experts_per_token, tokens
        return self.weight_bytes + most_experts(*chosen, self.num_groups) * self.expert_bytes


def distinct_experts(num_experts: int, experts_per_token: int, tokens: float) -> float:
    """The expected number of a layer's experts that `tokens` tokens use, all equally likely.

    Real routing is skewed, so that fewer are read.
    """
    if not num_experts:
        return 0.0
    return num_experts * (1 - (1 - experts_per_token / num_experts) ** tokens)


def most_experts(num_experts: int, experts_per_token: int, tokens: float, num_groups: int) -> float:
    """The `distinct_experts` of the group with most of them, of groups with as many experts each.

    Experts are taken as used independently of each other: 1% too many for one token and two groups.
    """
    distinct = distinct_experts(num_experts, experts_per_token, tokens)
    if num_groups == 1 or not num_experts:
        return distinct
    share, used = num_experts // num_groups, distinct / num_experts
    chances = [math.comb(share, n) * used**n * (1 - used) ** (share - n) for n in range(share)]
    # The mean of whole numbers is the sum of the chances to be above 0, 1, 2, ...
    return sum(1 - min(below, 1.0) ** num_groups for below in itertools.accumulate(chances))


def model_cost(
    shape: ModelShape,
    bytes_per_value: int = 2,
    num_devices: int = 1,
    kv_cache_dtype: KVCacheDType = "auto",
    *,
    pools: bool = False,
    num_groups: int = 1,
) -> ModelCost:
    """Count bytes and operations; norms and embedding rows are left out.

    Args:
        shape: the model's sizes.
        bytes_per_value: of activations, and of weights that are not quantized.
        num_devices: N, over which it is split; the counts are then one device's. Keys and values
            are whole heads: with fewer heads than devices, each has one, and all of their
            projections.
        kv_cache_dtype: dtype of keys and values in the cache.
        pools: prompts are read alone, and no token goes through the head.
        num_groups: G, of the N devices, that have whole experts, whose width a group shares.
    """
    E, L, N = shape.hidden_size, shape.num_hidden_layers, num_devices
    kv_split = N if shape.num_key_value_heads % N == 0 else 1
    attention = 2 * E * shape.q_size // N + 2 * E * shape.kv_size // kv_split
    routers = shape.num_expert_layers * E * shape.num_experts
    dense = shape.num_dense_layers * (shape.mlp_weights // N)
    head = 0 if pools else shape.vocab_size * E // N
    outside_experts = L * attention + routers + dense
    experts = shape.num_expert_layers * shape.expert_weights // N
    return ModelCost(
        weight_bytes=(outside_experts + head) * bytes_per_value
        - shape.bytes_saved(bytes_per_value, N, parts=(*ATTENTION, *MLP) if pools else PROJECTIONS),
        kv_bytes_per_token=shape.kv_bytes_per_token(bytes_per_value, N, kv_cache_dtype),
        layer_flops_per_token=2 * (outside_experts + shape.experts_per_token * experts),
        head_flops_per_token=2 * head,
        attention_flops_per_pair=4 * L * shape.q_size // N,
        expert_bytes=shape.expert_bytes(bytes_per_value) * num_groups // N,
        num_experts=shape.num_experts,
        experts_per_token=shape.experts_per_token,
        num_groups=num_groups,
        code_flops_per_token=2 * shape.weights_times_codes(N),
        codes="int8" if shape.quantization and shape.quantization.codes == "int8" else "fp8",
    )


def decode_step_bytes(cost: ModelCost, rows: int, context_tokens: int) -> float:
    """Bytes that one decode step reads; arguments as for `decode_step_floor_s`."""
    return cost.bytes_read(rows) + context_tokens * cost.kv_bytes_per_token


def decode_step_floor_s(cost: ModelCost, chip: Chip, rows: int, context_tokens: int) -> float:
    """Seconds of one decode step.

    Args:
        cost: the model's cost.
        chip: the device.
        rows: B, sequences in the step.
        context_tokens: KV tokens read, over all rows.
    """
    read = decode_step_bytes(cost, rows, context_tokens)
    flops = rows * (cost.layer_flops_per_token + cost.head_flops_per_token)
    flops += context_tokens * cost.attention_flops_per_pair
    return max(read / chip.bytes_per_s, products_s(cost, chip, flops, rows))


def prefill_flops(cost: ModelCost, lengths: list[int], cached: int = 0) -> float:
    """Operations of a prefill; arguments as for `prefill_floor_s`."""
    new_tokens = sum(length - cached for length in lengths)
    pairs = sum((length * (length + 1) - cached * (cached + 1)) // 2 for length in lengths)
    flops = new_tokens * cost.layer_flops_per_token + pairs * cost.attention_flops_per_pair
    return flops + len(lengths) * cost.head_flops_per_token


def prefill_floor_s(cost: ModelCost, chip: Chip, lengths: list[int], cached: int = 0) -> float:
    """Seconds to prefill prompts of `lengths`, whose first `cached` tokens are in pages already.

    Each prompt's last token goes through the head; a token attends to itself and all earlier ones.
    """
    read = cost.bytes_read(sum(length - cached for length in lengths))
    return max(read / chip.bytes_per_s, prefill_products_s(cost, chip, lengths, cached))


def prefill_products_s(cost: ModelCost, chip: Chip, lengths: list[int], cached: int = 0) -> float:
    """Seconds in which the matrix units are busy; arguments as for `prefill_floor_s`."""
    new_tokens = sum(length - cached for length in lengths)
    return products_s(cost, chip, prefill_flops(cost, lengths, cached), new_tokens)


def products_s(cost: ModelCost, chip: Chip, flops: float, tokens: float) -> float:
    """Seconds of so many operations, those of this number of tokens' products of codes included."""
    of_codes = tokens * cost.code_flops_per_token
    plain_s = (flops - of_codes) / chip.flops_per_s
    return plain_s + of_codes / chip.code_flops_per_s(cost.codes)
