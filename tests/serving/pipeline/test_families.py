"""Files, families and formats in stages: each stage loads its own layers, of any kind."""

import dataclasses

import jax
import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.experts import Experts
from jaxinfer.testing import TINY_SETTINGS, tiny_params
from tests.serving.pipeline.engines import CONFIG, TWO_STAGES, engine, params_of, parts, tokens

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[1, 2, 3], list(range(40, 60))]
EXPERTS = dataclasses.replace(
    CONFIG, model_type="qwen3_moe", experts=Experts(8, 2, 32, dense_layers=(1, 2))
)
UNROTATED = dataclasses.replace(
    CONFIG, model_type="smollm3", unrotated_layers=(3,), tie_word_embeddings=True
)


def answers(llm):
    return tokens(llm.generate(PROMPTS, GREEDY, use_tqdm=False))


@pytest.mark.slow
@pytest.mark.parametrize("config", [EXPERTS, UNROTATED], ids=["experts", "smollm3"])
def test_layers_of_several_kinds_are_told_by_their_place_in_the_model(config):
    with engine(config) as one:
        expected = answers(one)
    with engine(config, **TWO_STAGES) as llm:
        assert answers(llm) == expected


@pytest.mark.parametrize("quantization", [None, pytest.param("int8", marks=pytest.mark.slow)])
def test_files_are_read_to_the_stages(tmp_path, quantization):
    save_params(params_of(CONFIG), CONFIG, tmp_path)
    options = {**TINY_SETTINGS, "skip_tokenizer_init": True, "quantization": quantization}
    with LLM(str(tmp_path), num_decode_steps=1, **options) as one:
        expected = answers(one)
    with LLM(str(tmp_path), **TWO_STAGES, **options) as llm:
        assert answers(llm) == expected
        layers = parts(llm).runner.resident.params["model"]["layers"]
        for index, device in enumerate([0, 0, 1, 1]):
            leaves = jax.tree.leaves(layers[str(index)])
            assert all(leaf.devices() == {jax.devices()[device]} for leaf in leaves)


@pytest.mark.slow
def test_plain_weights_are_quantized_on_their_stages():
    with engine(quantization="int8") as one:
        expected = answers(one)
    with engine(quantization="int8", **TWO_STAGES) as llm:
        assert answers(llm) == expected
        llm.weights.update(tiny_params(CONFIG, seed=2))
        assert answers(llm) != expected
