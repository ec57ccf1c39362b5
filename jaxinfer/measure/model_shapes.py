"""The shapes of published dense Qwen3 models, to measure speed without downloading weights."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxinfer.model.config import ModelConfig

VOCAB_SIZE = 151_936

# (hidden, intermediate, layers, query heads, kv heads, tied head), from each model's config.json.
_SHAPES = {
    "0.6b": (1024, 3072, 28, 16, 8, True),
    "1.7b": (2048, 6144, 28, 16, 8, True),
    "4b": (2560, 9728, 36, 32, 8, True),
    "8b": (4096, 12288, 36, 32, 8, False),
    "14b": (5120, 17408, 40, 40, 8, False),
    "32b": (5120, 25600, 64, 64, 8, False),
}
SHAPE_NAMES = tuple(_SHAPES)


def shape_config(name: str) -> "ModelConfig":
    """The configuration of Qwen3-`name` (see `SHAPE_NAMES`), in bfloat16."""
    from jaxinfer.model.config import ModelConfig

    hidden, intermediate, layers, heads, kv_heads, tied = _SHAPES[name]
    return ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=tied,
        dtype="bfloat16",
        eos_token_ids=(151_645, 151_643),
    )
