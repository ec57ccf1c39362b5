"""Random draft heads, as trees and as files, for tests."""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.dflash.config import DFlashConfig
from jaxinfer.model.draft_head.eagle3.config import Eagle3Config
from jaxinfer.model.draft_head.head_config import HeadConfig
from jaxinfer.model.draft_head.weights import describe_head


def head_config(model: ModelConfig, **changes: Any) -> Eagle3Config:
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
    return Eagle3Config(layer, **options)


def dflash_config(model: ModelConfig, **changes: Any) -> DFlashConfig:
    """A head of two layers with fewer heads than the model, for blocks of 6 tokens."""
    layer = dataclasses.replace(
        head_config(model).layer, model_type="qwen3", num_hidden_layers=2, intermediate_size=56
    )
    options = {
        "draft_vocab_size": model.vocab_size,
        "states": (1, 1),
        "block_size": 6,
        "mask_token_id": model.vocab_size - 2,
    }
    return DFlashConfig(layer, **options | changes)


def random_head(config: HeadConfig, *, seed: int = 0, own: Collection[str] = ()) -> dict[str, Any]:
    """Parameters spread widely enough that every one of them matters."""
    rng = np.random.default_rng(seed)
    described = describe_head(config, "float32", own=own)

    def draw(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        mean = 1.0 if "norm" in jax.tree_util.keystr(path) else 0
        return rng.normal(mean, 0.3, leaf.shape).astype(np.float32)

    ids = np.sort(rng.choice(config.layer.vocab_size, config.draft_vocab_size, replace=False))
    tree = jax.tree_util.tree_map_with_path(draw, described)
    return tree | {"token_ids": ids.astype(np.int32)}
