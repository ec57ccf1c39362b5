"""Compares a saved model with transformers' own: logits, and greedy texts as they are served."""

import jax
import numpy as np

from jaxinfer import LLM, ModelConfig, SamplingParams
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.forward import forward
from tests.lazy import torch
from tests.serving.small_llm import SETTINGS

_NEW_TOKENS = 64


def reference_logits(model, token_ids, **inputs) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(token_ids), **inputs).logits.float().numpy()


def our_logits(directory, token_ids, dtype="float32", **inputs) -> np.ndarray:
    config = ModelConfig.from_directory(directory)
    params = load_params(directory, config, dtype)
    return np.asarray(jax.jit(forward, static_argnums=1)(params, config, token_ids, **inputs))


def assert_logits_equal(model, directory, shape) -> None:
    """The float32 logits of `shape` random tokens, and the greedy choices."""
    token_ids = np.random.default_rng(1).integers(0, 384, shape, dtype=np.int32)
    expected, actual = reference_logits(model, token_ids), our_logits(directory, token_ids)
    assert np.abs(expected).max() > 1, "logits too small for the comparison to mean anything"
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(actual.argmax(-1), expected.argmax(-1))


def assert_served_texts_equal(model, directory, **settings) -> None:
    """64 greedy tokens of three prompts, by an engine with these settings."""
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 384, length).tolist() for length in (5, 17, 40)]
    config = ModelConfig.from_directory(directory)
    params = load_params(directory, config, "float32")
    greedy = SamplingParams(temperature=0.0, max_tokens=_NEW_TOKENS, ignore_eos=True)
    settings = SETTINGS | {"max_model_len": 128} | settings
    with LLM(params=params, config=config, **settings) as llm:
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        with torch.no_grad():
            expected = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=_NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
            )
        assert list(output.outputs[0].token_ids) == expected[0, len(prompt) :].tolist()
