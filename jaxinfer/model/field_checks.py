"""Checks of a model's values and sizes, each naming the field it refuses."""

from collections.abc import Mapping
from typing import Any

from jaxinfer.checks import show

_LARGEST_NUMBER = 1e9


def whole_number(name: str, value: Any, smallest: int, largest: int) -> int:
    """``value`` if it is an int (no bool) within the bounds; else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
        raise ValueError(
            f"{name} must be a whole number from {smallest} to {largest}, got {show(value)}"
        )
    return value


def positive(name: str, value: Any) -> float:
    """``value`` as a float if it is a number above 0 and below a billion; else ValueError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value < _LARGEST_NUMBER:
        raise ValueError(f"{name} must be a positive number below 1e9, got {show(value)}")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """``value`` if it is true or false; else ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {show(value)}")
    return value


def mlp_sizes(config: Any) -> dict[str, int]:
    """Widths of the MLPs that the layers of a `ModelConfig` have, and of its experts, by name."""
    dense, experts = {"intermediate_size": config.intermediate_size}, config.experts
    if experts is None:
        return dense
    dense = dense if experts.dense_layers else {}
    return {**dense, "moe_intermediate_size": experts.intermediate_size}


def indivisible_sizes(
    num_devices: int,
    *,
    num_attention_heads: int,
    num_key_value_heads: int,
    mlp_sizes: Mapping[str, int],
    vocab_size: int,
) -> list[str]:
    """The sizes that don't split evenly over devices, each with its number; empty if all do.

    `mlp_sizes` are widths of MLPs and of experts by name (`mlp_sizes`).
    """
    split = {
        "num_attention_heads": num_attention_heads,
        **mlp_sizes,
        "vocab_size": vocab_size,
    }
    problems = [f"{name} ({size})" for name, size in split.items() if size % num_devices]
    # Either each device owns whole heads, or each head belongs to a whole number of devices.
    if num_key_value_heads % num_devices and num_devices % num_key_value_heads:
        problems.append(f"num_key_value_heads ({num_key_value_heads})")
    return problems
