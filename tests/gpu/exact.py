"""The bundled model in float32, where an engine's greedy tokens must equal a plain loop's."""

import functools
from typing import Any

import jax
import numpy as np

from jaxinfer import LLM, ModelConfig, SamplingParams, forward
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.weights import load_params
from tests.gpu.bundled import MAX_MODEL_LEN, Setting, ragged_prompts

_NUM_OUTPUTS = 24


@functools.cache
def expected_tokens() -> list[list[int]]:
    """The plain loop: the whole sequences through `forward` for every token."""
    config = ModelConfig.from_directory(BUNDLED_MODEL)
    params = load_params(BUNDLED_MODEL, config, "float32")
    step = jax.jit(lambda tokens: forward(params, config, tokens).argmax(-1))
    prompts = ragged_prompts()
    lengths = np.array([len(prompt) for prompt in prompts])
    # Causal attention: the padding behind a row's last token cannot change its logits.
    tokens = np.zeros((len(prompts), MAX_MODEL_LEN), np.int32)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    rows = np.arange(len(prompts))
    for i in range(_NUM_OUTPUTS):
        tokens[rows, lengths + i] = np.asarray(step(tokens))[rows, lengths + i - 1]
    return [
        row[n : n + _NUM_OUTPUTS].tolist() for row, n in zip(tokens, lengths.tolist(), strict=True)
    ]


def engine(setting: Setting, **options: Any) -> LLM:
    """An engine that compiles what it meets; `options` win over the setting's."""
    arguments = {
        "dtype": "float32",
        "attention_backend": "xla",
        "compile_ahead": False,
        "show_progress": False,
    }
    return LLM(**(arguments | setting.engine_arguments() | options))


def greedy_tokens(llm: LLM) -> list[list[int]]:
    """What it answers to the prompts of `expected_tokens`."""
    greedy = SamplingParams(temperature=0.0, max_tokens=_NUM_OUTPUTS, ignore_eos=True)
    outputs = llm.generate(ragged_prompts(), greedy, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
