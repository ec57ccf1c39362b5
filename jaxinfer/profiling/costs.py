"""The bytes and operations that each part of a step needs at least, from shapes.

Weights are read once a step, and activations between parts written and read once. Values that stay
inside one kernel are not counted, so a fused part may need less than stated.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from jaxinfer.config import KVCacheDType
from jaxinfer.planning.cost import distinct_experts
from jaxinfer.planning.operations import Operation, head_norms, operations
from jaxinfer.planning.shapes import BYTES_OF, ModelShape
from jaxinfer.profiling.trace.steps import StepFacts

_LOGIT_BYTES = 4


class Cost(NamedTuple):
    """Least bytes moved and operations done: 2 for each product and addition of a product."""

    num_bytes: float
    flops: float

    def plus(self, other: "Cost") -> "Cost":
        """Both together."""
        return Cost(self.num_bytes + other.num_bytes, self.flops + other.flops)

    def divided(self, by: float) -> "Cost":
        """An equal share."""
        return Cost(self.num_bytes / by, self.flops / by)


NOTHING = Cost(0.0, 0.0)


def step_costs(
    shape: ModelShape,
    dtype: str,
    facts: StepFacts,
    num_devices: int = 1,
    kv_cache_dtype: KVCacheDType = "auto",
) -> dict[str, Cost]:
    """Each part's cost in a step, by its name in `PARTS`, on each of N devices, split evenly."""
    total: dict[str, Cost] = {}
    for inner in range(facts.num_steps):
        context = facts.context_tokens + inner * facts.rows
        pairs = facts.pairs + inner * facts.rows
        one = dataclasses.replace(facts, context_tokens=context, pairs=pairs)
        for part, cost in _inner_costs(shape, dtype, kv_cache_dtype, one).items():
            total[part] = total.get(part, NOTHING).plus(cost)
    return {part: cost.divided(num_devices) for part, cost in total.items()}


def _inner_costs(
    shape: ModelShape, dtype: str, kv_cache_dtype: KVCacheDType, facts: StepFacts
) -> dict[str, Cost]:
    """Each part's cost in one step: a single step, or one of a multi-step decode."""
    size = BYTES_OF[dtype]
    parts = {part.name: part for part in operations(shape, dtype, 1, kv_cache_dtype)}
    norms, of_heads = parts["norms"], head_norms(shape, size)
    E, L, V = shape.hidden_size, shape.num_hidden_layers, shape.vocab_size
    q, qkv = shape.q_size, shape.q_size + 2 * shape.kv_size
    # Drafts, too, have a token sampled behind them.
    T, B = facts.tokens, facts.tokens if facts.kind == "decode" else facts.rows
    # A prefill's last layer goes on with one token of each row.
    after = (T * (L - 1) + B) / L
    ours = qkv / (qkv + q)  # of the projections' weights; the rest is the output projection's
    both, rope = parts["qkv and output"], parts["rope, KV write"]
    logits = B * V * _LOGIT_BYTES
    return {
        "embed": Cost(2 * T * E * size, 0),
        "norm": Cost(
            norms.bytes_per_token - of_heads.bytes_per_token + 2 * (2 * L * T + B) * E * size,
            _flops(norms, T) - _flops(of_heads, T),
        ),
        "qkv": Cost(ours * both.bytes_per_token + L * T * (E + qkv) * size, ours * _flops(both, T)),
        "rope_and_write": Cost(
            L * T * (qkv + q) * size + rope.bytes_per_token * T,
            _flops(rope, T) + _flops(of_heads, T),
        ),
        "attention": Cost(
            parts["attention"].bytes_per_token * facts.context_tokens + 2 * L * after * q * size,
            _flops(parts["attention"], facts.pairs),
        ),
        "o": Cost(
            (1 - ours) * both.bytes_per_token + L * after * (q + 2 * E) * size,
            (1 - ours) * _flops(both, after),
        ),
        "mlp": _mlp_cost(shape, parts, after, size),
        "head": Cost(
            parts["head"].bytes_per_token + B * E * size + logits, _flops(parts["head"], B)
        ),
        "sample": Cost(logits, B * V),
    }


def _mlp_cost(shape: ModelShape, parts: Mapping[str, Operation], tokens: float, size: int) -> Cost:
    """Of dense MLPs, routers and experts; each distinct expert is read once."""
    own = [parts[name] for name in ("mlp", "router", "experts") if name in parts]
    k, E = shape.experts_per_token, shape.hidden_size
    read = sum(each.bytes_per_token for each in own)
    read += shape.expert_bytes(size) * (distinct_experts(shape.num_experts, k, round(tokens)) - k)
    moved = shape.num_dense_layers * (E + shape.intermediate_size)
    moved += shape.num_expert_layers * (1 + k) * E
    flops = sum(_flops(each, tokens) for each in own)
    return Cost(read + tokens * 2 * moved * size, flops)


def _flops(part: Operation, tokens: float) -> float:
    return part.flops_per_token * tokens
