"""The numbers of devices that a model splits evenly over. Nothing here imports JAX."""

from typing import Any

from jaxinfer.model.quantized.sizes import indivisible_blocks

_MOST_DEVICES = 64


def check_divisible(config: Any, num_devices: int, num_groups: int = 1) -> None:
    """Raise unless a `ModelConfig` splits evenly over ``num_devices``.

    Args:
        config: the model's shape.
        num_devices: N, tensor-parallel degree.
        num_groups: G, groups of these devices that have whole experts; a divisor of N.

    Raises:
        ValueError: names what doesn't divide and lists the degrees up to 64 that work.
    """
    problems = indivisible(config, num_devices, num_groups)
    if problems:
        works = ", ".join(map(str, degrees(config, num_devices, num_groups)))
        raise ValueError(
            f"tensor_parallel_size {num_devices} does not divide {', '.join(problems)}; "
            f"sizes that work: {works or 'none'}"
        )


def indivisible(config: Any, num_devices: int, num_groups: int = 1) -> list[str]:
    """The sizes that don't split evenly, each with its number; empty if all do.

    Arguments as of `check_divisible`.
    """
    experts = config.experts
    parts = {"num_attention_heads": (config.num_attention_heads, num_devices)}
    if experts is None or experts.dense_layers:
        parts["intermediate_size"] = (config.intermediate_size, num_devices)
    if experts is not None:
        # The devices of a group share the width of its experts.
        parts["moe_intermediate_size"] = (experts.intermediate_size, num_devices // num_groups)
        parts["num_experts"] = (experts.num_experts, num_groups)
    parts["vocab_size"] = (config.vocab_size, num_devices)
    problems = [f"{name} ({size})" for name, (size, count) in parts.items() if size % count]
    heads = config.num_key_value_heads
    # Either each device owns whole heads, or each head belongs to a whole number of devices.
    if heads % num_devices and num_devices % heads:
        problems.append(f"num_key_value_heads ({heads})")
    # Blocks are asked of sizes that divide.
    return problems or indivisible_blocks(config, num_devices, num_groups)


def degrees(config: Any, num_devices: int, num_groups: int) -> list[int]:
    """Degrees of tensor parallelism that work, with as many groups, or as many as devices."""
    is_whole = num_groups == num_devices
    groups = {n: n if is_whole else num_groups for n in range(1, _MOST_DEVICES + 1)}
    return [n for n, g in groups.items() if n % g == 0 and not indivisible(config, n, g)]


def check_expert_groups(config: Any, num_devices: int, num_groups: int | None) -> int:
    """G, the groups of devices that have whole experts: as asked for, or as many as devices.

    Args:
        config: a `ModelConfig`.
        num_devices: N, tensor-parallel degree.
        num_groups: `EngineConfig.expert_parallel_size`.

    Raises:
        ValueError: the model has no experts, they don't split like that, or nothing splits over so
            many devices; lists what works.
    """
    if config.experts is None:
        raise ValueError(
            f"enable_expert_parallel needs a model with experts, and this {config.model_type} has "
            "none; leave it out"
        )
    count, width = config.experts.num_experts, config.experts.intermediate_size
    groups = num_devices if num_groups is None else num_groups
    problem = ""
    if num_devices % groups:
        problem = f"divide tensor_parallel_size ({num_devices})"
    elif count % groups:
        problem = f"divide num_experts ({count})"
    elif width % (num_devices // groups):
        share = num_devices // groups
        problem = f"leave each expert's moe_intermediate_size ({width}) a multiple of {share}"
    if problem:
        divisors = (n for n in range(1, num_devices + 1) if num_devices % n == 0)
        works = [str(n) for n in divisors if not indivisible(config, num_devices, n)]
        if not works:  # with any groups: heads or the vocabulary may not split
            check_divisible(config, num_devices, groups)
        raise ValueError(
            f"expert_parallel_size {groups} does not {problem}; sizes that work with "
            f"tensor_parallel_size {num_devices}: {', '.join(works) or 'none'}"
        )
    return groups


def check_redundant_experts(num_groups: int, num_redundant: int) -> None:
    """Raise unless G groups of devices can move experts, and hold R more of them.

    Raises:
        ValueError: there is one group, or they can't have the same number of experts.
    """
    if num_groups == 1:
        raise ValueError(
            "enable_eplb moves experts between groups of devices that have whole ones, and there "
            "is one group; raise tensor_parallel_size, or leave it out"
        )
    if num_redundant % num_groups:
        raise ValueError(
            f"eplb_config: num_redundant_experts must be a multiple of the {num_groups} groups "
            f"that experts are split over, got {num_redundant}"
        )
