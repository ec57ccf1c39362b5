"""A decoder's projections: their paths, their shapes, and how tensor parallelism splits them.

Nothing here imports JAX.
"""

from collections.abc import Iterator
from typing import Any

from jaxinfer.model.layer_kind import ATTENTION_PROJECTIONS, MLP_PROJECTIONS

HEAD = "lm_head"
EXPERTS = "experts"
PROJECTIONS = (
    *(f"self_attn.{name}" for name in ATTENTION_PROJECTIONS),
    *(f"mlp.{name}" for name in MLP_PROJECTIONS),
    HEAD,
)
"""The projections of a layer, and the head."""


def projection_shapes(config: Any) -> dict[str, tuple[int, int]]:
    """Outputs and inputs of each projection of a `ModelConfig`, by the last part of its path."""
    E, F, D = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * D, config.num_key_value_heads * D
    return {
        **{"q_proj": (q, E), "k_proj": (kv, E), "v_proj": (kv, E), "o_proj": (E, q)},
        **{"gate_proj": (F, E), "up_proj": (F, E), "down_proj": (E, F)},
        HEAD: (config.vocab_size, E),
    }


def expert_shapes(config: Any) -> dict[str, tuple[int, int, int]]:
    """X, outputs and inputs of each projection of all experts, by the last part of its path."""
    X, F, E = config.experts.num_experts, config.experts.intermediate_size, config.hidden_size
    return {"gate_proj": (X, F, E), "up_proj": (X, F, E), "down_proj": (X, E, F)}


def is_of_experts(path: str) -> bool:
    """Whether the projection at a path is all experts' of a layer."""
    return f".{EXPERTS}." in path


def splits(name: str, config: Any, num_devices: int) -> tuple[int, int]:
    """In how many parts the outputs and the inputs of a projection lie on devices."""
    if name in ("o_proj", "down_proj"):
        return 1, num_devices
    if name in ("k_proj", "v_proj") and config.num_key_value_heads % num_devices:
        return 1, 1
    return num_devices, 1


def projection_paths(config: Any) -> Iterator[str]:
    """Paths of all projections in the parameter tree, of layers with one MLP or with experts."""
    with_experts = set()
    if config.experts is not None:
        with_experts.update(config.experts.layers(config.num_hidden_layers))
    for layer in range(config.num_hidden_layers):
        for part in PROJECTIONS[:-1]:
            where = part.replace("mlp.", f"mlp.{EXPERTS}.") if layer in with_experts else part
            yield f"model.layers.{layer}.{where}"
    if not config.tie_word_embeddings:
        yield HEAD
