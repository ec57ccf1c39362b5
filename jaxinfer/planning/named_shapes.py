"""Shapes of published models, from each one's config.json, so that no download is needed."""

import dataclasses
from typing import Any

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.experts import Experts
from jaxinfer.planning.shapes import ModelShape

_QWEN3: dict[str, Any] = {"vocab_size": 151_936, "head_dim": 128, "max_position_embeddings": 40_960}

# (hidden, intermediate, layers, query heads, kv heads, tied head)
_DENSE_QWEN3: dict[str, Any] = {
    "0.6B": (1024, 3072, 28, 16, 8, True),
    "1.7B": (2048, 6144, 28, 16, 8, True),
    "4B": (2560, 9728, 36, 32, 8, True),
    "8B": (4096, 12288, 36, 32, 8, False),
    "14B": (5120, 17408, 40, 40, 8, False),
    "32B": (5120, 25600, 64, 64, 8, False),
}


def _dense_qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, tied: bool
) -> ModelShape:
    return ModelShape(
        **_QWEN3,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
        dtype="bfloat16",
        eos_token_ids=(151_645, 151_643),
    )


def _expert_qwen3(
    hidden: int, intermediate: int, layers: int, heads: int, expert_width: int
) -> ModelShape:
    return ModelShape(
        **_QWEN3,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        experts=Experts(num_experts=128, experts_per_token=8, intermediate_size=expert_width),
        dtype="bfloat16",
        model_type="qwen3_moe",
    )


_LLAMA_2_7B = ModelShape(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=128,
    max_position_embeddings=4096,
    rope_theta=10_000.0,
    dtype="float16",
    model_type="llama",
)

NAMED_SHAPES = {
    **{f"Qwen3-{size}": _dense_qwen3(*shape) for size, shape in _DENSE_QWEN3.items()},
    "Qwen3-30B-A3B": _expert_qwen3(2048, 6144, 48, 32, 768),
    "Qwen3-235B-A22B": _expert_qwen3(4096, 12288, 94, 64, 1536),
    "Llama-2-7B": _LLAMA_2_7B,
}
"""Shapes by the model's published name, without its owner."""
SERVED_SHAPES = {
    name.removeprefix("Qwen3-").lower(): shape
    for name, shape in NAMED_SHAPES.items()
    if shape.model_type.startswith("qwen3")
}
"""Shapes that can be filled with random weights, to measure speed; "8b" is Qwen3-8B."""
_OWNERS = {"": "", "qwen": "qwen3", "meta-llama": "llama"}


def find_shape(name: str) -> tuple[str, ModelShape] | None:
    """A published shape's name and numbers, or None; in any case; the owner is optional."""
    owner, _, model = name.lower().rpartition("/")
    model = model.removesuffix("-hf")
    for known, shape in NAMED_SHAPES.items():
        if known.lower() == model and shape.model_type.startswith(_OWNERS.get(owner, "?")):
            return known, shape
    return None


def shape_config(name: str) -> ModelConfig:
    """The configuration of a model of `SERVED_SHAPES`."""
    shape = SERVED_SHAPES[name]
    names = (field.name for field in dataclasses.fields(ModelConfig))
    return ModelConfig(**{name: getattr(shape, name) for name in names})
