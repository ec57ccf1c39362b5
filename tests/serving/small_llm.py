"""A tiny random Qwen3 with a real tokenizer, for tests of the API around it."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer import LLM, ModelConfig, SamplingParams, forward
from tests.model import tiny

CONFIG = ModelConfig(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=10_000.0,
    max_position_embeddings=256,
)
MAX_MODEL_LEN = 64
# What all small engines and runners have in common, so that they are of the same programs, which
# a run of the tests compiles once: a batch of up to four rows, and steps of up to 64 tokens.
SETTINGS: dict[str, Any] = {
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 16,
    "num_kv_blocks": 65,
    "compile_ahead": False,
    "show_progress": False,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]


@functools.cache
def small_params() -> Any:
    return tiny.params(CONFIG, seed=1)


def small_llm(**options: Any) -> LLM:
    """An engine that compiles few shapes; `options` go to `LLM`."""
    return LLM(**({"params": small_params(), "config": CONFIG} | SETTINGS | options))


@contextlib.contextmanager
def held_blocks(llm: LLM, num_left: int) -> Iterator[None]:
    """Leave an idle engine so few free blocks; a smaller cache would need programs of its own."""
    pool = llm._loaded.replicas[0].scheduler.pool
    held = pool.allocate(pool.num_free_blocks - num_left)
    yield
    pool.free(held)


@functools.cache
def _padded_forward() -> Any:
    return jax.jit(lambda params, tokens: forward(params, CONFIG, tokens))


def reference_logits(tokens: Sequence[int], params: Any = None) -> np.ndarray:
    """Logits `[T, V]` of the plain forward; padded, so that one program serves all lengths."""
    padded = np.zeros(MAX_MODEL_LEN, np.int32)
    padded[: len(tokens)] = tokens
    logits = _padded_forward()(small_params() if params is None else params, padded)
    return np.asarray(logits)[: len(tokens)]


def reference_logprobs(tokens: Sequence[int]) -> np.ndarray:
    """Log-softmax of `reference_logits`."""
    return np.asarray(jax.nn.log_softmax(reference_logits(tokens)))


def greedy_reference(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens of a plain loop over the forward."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]
