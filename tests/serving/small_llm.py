"""The small engine of `jaxinfer.testing`, with prompts and references, for tests of the API."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxinfer import LLM, AsyncLLM, SamplingParams, forward
from jaxinfer.testing import TINY_CONFIG, TINY_SETTINGS, tiny_llm, tiny_params

CONFIG = TINY_CONFIG
# All small engines and runners have these, so that they are of the same programs, which a run of
# the tests compiles once.
SETTINGS: dict[str, Any] = dict(TINY_SETTINGS)
MAX_MODEL_LEN = SETTINGS["max_model_len"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]


@functools.cache
def small_params() -> Any:
    return tiny_params(seed=1)


def small_llm(**options: Any) -> LLM:
    """An engine that compiles few shapes; `options` go to `LLM`."""
    return tiny_llm(**({"params": small_params()} | options))


def small_async_llm(**options: Any) -> AsyncLLM:
    """The same for tasks of an event loop."""
    return AsyncLLM(**({"params": small_params(), "config": CONFIG} | SETTINGS | options))


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
