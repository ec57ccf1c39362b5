"""An engine of the tiny model that starts in a second on a CPU, and its reference."""

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxinfer.model.config import ModelConfig
from jaxinfer.model.forward import forward
from jaxinfer.serving.llm import LLM
from jaxinfer.testing.tiny_model import TINY_CONFIG, tiny_params

TINY_SETTINGS = MappingProxyType(
    {
        "max_model_len": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": 16,
        "num_kv_blocks": 65,
        "compile_ahead": False,
        "show_progress": False,
    }
)
"""Arguments of `LLM` for few programs: up to four rows, and steps of up to 64 tokens.

Engines with the same settings and model share what one process has compiled.
"""


def tiny_llm(**options: Any) -> LLM:
    """An engine of token ids that compiles few shapes, each at its first use.

    Args:
        options: of `LLM`, in place of `TINY_SETTINGS` and the tiny model.
    """
    model = {"config": TINY_CONFIG} if "params" in options else _tiny_model()
    return LLM(**{**model, **TINY_SETTINGS, **options})


def greedy_reference(
    params: Any, prompt: Sequence[int], count: int, config: ModelConfig = TINY_CONFIG
) -> list[int]:
    """The greedy tokens after a prompt, by a plain loop over `forward`.

    Args:
        params: the parameter tree.
        prompt: token ids; with `count` at most 64.
        count: how many tokens to write.
        config: the model's shape.
    """
    tokens = list(prompt)
    for _ in range(count):
        padded = np.zeros(TINY_SETTINGS["max_model_len"], np.int32)  # one program for all lengths
        padded[: len(tokens)] = tokens
        logits = np.asarray(_forward(params, config, padded))
        tokens.append(int(logits[len(tokens) - 1].argmax()))
    return tokens[len(prompt) :]


@functools.cache
def _tiny_model() -> dict[str, Any]:
    return {"params": tiny_params(), "config": TINY_CONFIG}


@functools.partial(jax.jit, static_argnums=1)
def _forward(params: Any, config: ModelConfig, tokens: Any) -> jax.Array:
    return forward(params, config, tokens)
