"""Which layers each stage of a pipeline has. Nothing here imports JAX."""

from typing import Any

_READ_BESIDE_WEIGHTS = 2
"""Bytes that a layer reads in a full batch for each of its weights': as much again is keys and
values."""


def stage_layers(config: Any, num_stages: int) -> tuple[range, ...]:
    """The consecutive layers of each stage, so that the longest stage is as short as can be.

    The last stage has the head, too, which counts as layers that read as many bytes: so it has
    fewer layers where the head is large. What does not divide goes to the first stages.

    Args:
        config: a `ModelConfig`, or a shape that is planned.
        num_stages: S.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    count = config.num_hidden_layers
    if num_stages > count:
        raise ValueError(
            f"pipeline_parallel_size {num_stages} is more than the model's {count} layers; sizes "
            f"that work: 1 to {count}"
        )
    if num_stages == 1:
        return (range(count),)
    head = head_layers(config)
    others = num_stages - 1

    def longest(last: int) -> tuple[float, int]:
        return max(-(-(count - last) // others), last + head), -last

    last = min(range(1, count - others + 1), key=longest)
    share, rest = divmod(count - last, others)
    stages, start = [], 0
    for size in (*(share + (i < rest) for i in range(others)), last):
        stages.append(range(start, start + size))
        start += size
    return tuple(stages)


def head_layers(config: Any) -> float:
    """The number of layers that read as many bytes as the head does, in a full batch."""
    return config.vocab_size * config.hidden_size / (_READ_BESIDE_WEIGHTS * layer_weights(config))


def layer_weights(config: Any) -> float:
    """Weights of an average layer."""
    hidden, count, experts = config.hidden_size, config.num_hidden_layers, config.experts
    heads = config.num_attention_heads + config.num_key_value_heads
    attention = 2 * hidden * heads * config.head_dim
    if experts is None:
        return attention + 3 * hidden * config.intermediate_size
    num_dense = len(experts.dense_layers)
    dense = num_dense * config.intermediate_size
    sparse = (count - num_dense) * experts.num_experts * experts.intermediate_size
    return attention + 3 * hidden * (dense + sparse) / count
