"""The groups of projections whose adapters share a product of ranks. Nothing here imports JAX."""

from collections.abc import Mapping

from jaxinfer.kernels.constants import RANK_BLOCK

GROUPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "o": ("self_attn", ("o_proj",)),
    "gate_up": ("mlp", ("gate_proj", "up_proj")),
    "down": ("mlp", ("down_proj",)),
}
"""Projections of a layer that read the same input: the part of the layer, and their names."""

ADAPTED = tuple((part, name) for part, names in GROUPS.values() for name in names)
"""The projections of a layer that adapters may change: (part of the layer, name)."""

COUNTS = (4, 2)
"""Shape of what kernels count in, int32."""


def padded_ranks(num_slots: int, ranks: int) -> int:
    """R: the ranks of all slots, as kernels take them."""
    return -(-num_slots * ranks // RANK_BLOCK) * RANK_BLOCK
