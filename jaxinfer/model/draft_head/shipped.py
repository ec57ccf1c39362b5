"""The draft heads that are shipped, and the one model that they were trained for."""

from pathlib import Path

from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import BUNDLED_DRAFT_HEADS, BUNDLED_HEAD_NAME, BUNDLED_MODEL
from jaxinfer.model.config import ModelConfig

_OF_MODEL = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings", "experts"),
)
"""What tells another model from a copy of the bundled one, quantized or for longer contexts."""


def shipped_head(name: str, method: str, model: ModelConfig) -> Path | None:
    """The directory of a method's shipped head if `name` stands for it; None for another's.

    Raises:
        ModelLoadError: it does, and the model is not the bundled one; one line.
    """
    if name != BUNDLED_HEAD_NAME:
        return None
    bundled = ModelConfig.from_directory(BUNDLED_MODEL)
    if any(getattr(model, field) != getattr(bundled, field) for field in _OF_MODEL):
        raise ModelLoadError(
            f"{name!r} is the head of the bundled model alone, and this is another model; give the "
            "directory or hub id of a head that was trained for it, or leave speculative_config out"
        )
    return BUNDLED_DRAFT_HEADS[method]
