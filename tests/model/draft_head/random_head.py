"""Random draft heads, as trees and as files, for tests."""

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.config import DraftHeadConfig
from jaxinfer.model.draft_head.weights import describe_head


def head_config(model: ModelConfig, **changes: Any) -> DraftHeadConfig:
    """A head with a vocabulary of its own and fewer heads than the model."""
    layer = dataclasses.replace(
        model,
        model_type="llama",
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=40,
        tie_word_embeddings=False,
        eos_token_ids=(),
        bos_token_id=None,
    )
    options = {"draft_vocab_size": 40, "states": (0, 1, 1)} | changes
    return DraftHeadConfig(layer, **options)


def random_head(
    config: DraftHeadConfig, *, seed: int = 0, has_embedding: bool = False
) -> dict[str, Any]:
    """Parameters spread widely enough that every one of them matters."""
    rng = np.random.default_rng(seed)
    described = describe_head(config, "float32", has_embedding=has_embedding)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = 1.0 if "norm" in jax.tree_util.keystr(path) else 0
        return rng.normal(mean, 0.3, leaf.shape).astype(np.float32)

    ids = np.sort(rng.choice(config.layer.vocab_size, config.draft_vocab_size, replace=False))
    tree = jax.tree_util.tree_map_with_path(draw, described)
    return tree | {"token_ids": ids.astype(np.int32)}
