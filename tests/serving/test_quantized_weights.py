"""Engines on every format of quantized weights, on one device and several."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import LLM, SamplingParams, forward, make_mesh
from jaxinfer.errors import ModelLoadError
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.checkpoint.parameter_names import unflatten
from jaxinfer.model.checkpoint.weights import load_params
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.quantized.params import quantize_params
from jaxinfer.model.quantized.quantization import SCHEMES, Quantization
from jaxinfer.testing import tiny_llm
from tests.model import tiny
from tests.model.quantized.stored import CONFIG, FORMATS, checkpoint, write

PROMPTS = [[1, 2, 3], [4, 5], list(range(6, 36))]
PARAMS = SamplingParams(
    temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=2, prompt_logprobs=1
)


def answers(llm, prompts=PROMPTS):
    """Tokens, and every log-probability that was asked for."""
    found = []
    for output in llm.generate(prompts, PARAMS, use_tqdm=False):
        completion = output.outputs[0]
        positions = [*output.prompt_logprobs[1:], *completion.logprobs]
        values = [{i: each.logprob for i, each in at.items()} for at in positions]
        found.append((list(completion.token_ids), values))
    return found


def _mean_difference(found, expected):
    """Of the prompts' log-probabilities."""
    pairs = zip(found, expected, strict=True)
    both = [(v[: -len(t)], w[: -len(t)]) for (t, v), (_, w) in pairs]
    return np.mean(
        [
            abs(at[token] - of_other[token])
            for values, others in both
            for at, of_other in zip(values, others, strict=True)
            for token in at.keys() & of_other.keys()
        ]
    )


def _assert_close(found, expected, atol):
    for (tokens, values), (others, of_others) in zip(found, expected, strict=True):
        assert tokens == others
        for at, others_at in zip(values, of_others, strict=True):
            for token in at.keys() & others_at.keys():
                np.testing.assert_allclose(at[token], others_at[token], atol=atol)


_OFTEN = ("awq", "fp8_block")
_ALSO = ("w8a8_static", "fp8_dynamic", "pack_zeros", "gptq_order")
"""What stands for all formats: their files are read in tests/model/quantized/test_files.py."""


def _marks_of(name, often, also):
    return () if name in often else pytest.mark.slow if name in also else pytest.mark.exhaustive


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_marks_of(name, _OFTEN, _ALSO)) for name in FORMATS]
)
def test_a_directory_is_served_on_one_device_or_four(name, tmp_path):
    tensors, plain = checkpoint(name)
    directory = write(tmp_path, name, tensors)
    given = {"params": None, "config": None, "model": str(directory), "skip_tokenizer_init": True}
    with tiny_llm(**given) as llm:
        expected = answers(llm)
        assert answers(llm, PROMPTS[2:]) == expected[2:], "a batch changes no row"
        params = llm._loaded.replicas[0].runner.resident.params
        config = llm.model_config
    # An input that is nearly half-way between two codes may become the other one; and a token's
    # inputs of one device have a scale of their own.
    inputs = FORMATS[name].inputs
    atol = 2e-4 if inputs is None else 0.05
    with tiny_llm(**given, mesh=make_mesh(4)) as llm:
        if "token" in (inputs or ""):
            assert _mean_difference(answers(llm), expected) < 0.1
        else:
            _assert_close(answers(llm), expected, atol)
    for prompt, (tokens, values) in zip(PROMPTS, expected, strict=True):
        scored = jax.nn.log_softmax(forward(params, config, jnp.array([*prompt, *tokens])))
        for position, at in enumerate(values):
            for token, logprob in at.items():
                np.testing.assert_allclose(logprob, scored[position, token], atol=atol)
    if FORMATS[name].inputs is None:
        tree = unflatten({path: jnp.asarray(leaf) for path, leaf in plain.items()})
        with tiny_llm(params=tree, config=CONFIG) as llm:
            assert answers(llm) == expected, "bit for bit as the weights that they stand for"


@pytest.fixture(scope="module")
def bundled():
    return load_params(BUNDLED_MODEL, ModelConfig.from_directory(BUNDLED_MODEL), "float32")


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(name, marks=_marks_of(name, ["fp8"], ["int4", "W8A8"])) for name in SCHEMES],
)
def test_a_plain_model_is_quantized_at_the_start_and_again_by_updates(scheme, bundled):
    params, sampling = bundled, SamplingParams(temperature=0.0, max_tokens=12)
    quantized = quantize_params(params, Quantization.scheme(scheme))
    prompts = ["Once upon a time"]
    with LLM(quantization=scheme, max_num_seqs=4, dtype="float32", show_progress=False) as llm:
        held = llm._loaded.replicas[0].runner.resident.params
        jax.tree.map(np.testing.assert_array_equal, held, quantized)
        answers = [each.outputs[0].text for each in llm.generate(prompts, sampling)]
        llm.update_params(jax.tree.map(jnp.zeros_like, params))
        llm.update_params(params)
        held = llm._loaded.replicas[0].runner.resident.params
        jax.tree.map(np.testing.assert_array_equal, held, quantized)
        assert [each.outputs[0].text for each in llm.generate(prompts, sampling)] == answers
        assert all(answer.startswith(", there was a ") for answer in answers)


def test_a_callers_plain_tree_is_quantized_too():
    scheme = Quantization("int4", (1, 128))
    config = dataclasses.replace(
        CONFIG, hidden_size=128, intermediate_size=256, num_attention_heads=4, head_dim=32
    )
    params = tiny.params(config)
    with tiny_llm(params=params, config=config, quantization="int4") as llm:
        held = llm._loaded.replicas[0].runner.resident.params
        jax.tree.map(np.testing.assert_array_equal, held, quantize_params(params, scheme))
        assert llm.model_config.quantization == scheme
    with pytest.raises(ValueError, match=r"quantization must be one of .*, got 'awq'"):
        tiny_llm(params=params, config=config, quantization="awq")


def test_a_quantized_checkpoint_is_not_quantized_again(tmp_path):
    directory = write(tmp_path, "awq", checkpoint("awq")[0])
    with pytest.raises(ValueError, match=r"quantization='fp8' quantizes plain .* int4 already"):
        LLM(model=str(directory), quantization="fp8", skip_tokenizer_init=True)
    with pytest.raises(
        ValueError, match=r"must be one of fp8, int8, .*, got 'awq'; a quantized ch"
    ):
        LLM(model=str(directory), quantization="awq")


def test_a_scale_of_inputs_from_a_checkpoint_can_not_be_updated(tmp_path):
    directory = write(tmp_path, "fp8_static", checkpoint("fp8_static")[0])
    given = {"params": None, "config": None, "model": str(directory), "skip_tokenizer_init": True}
    with tiny_llm(**given) as llm:
        before = answers(llm)
        with pytest.raises(ValueError, match=r"_proj has a scale of its inputs from a checkpoint"):
            llm.update_params(tiny.params(CONFIG))
        assert answers(llm) == before


def test_a_checkpoint_that_lacks_a_scale_costs_no_memory(tmp_path):
    tensors, _ = checkpoint("hf_fp8")
    del tensors["model.layers.0.mlp.up_proj.weight_scale_inv"]
    directory = write(tmp_path, "hf_fp8", tensors)
    with pytest.raises(ModelLoadError, match=r"lacks '.*up_proj\.weight_scale_inv', which"):
        LLM(model=str(directory), skip_tokenizer_init=True, show_progress=False)


def test_a_config_of_a_callers_own_may_have_any_form():
    form = Quantization("int8", block=(32, 32), ignore=("lm_head", "re:.*k_proj"))
    config = dataclasses.replace(CONFIG, quantization=form)
    with tiny_llm(params=tiny.params(CONFIG), config=config) as llm:
        found = answers(llm)
    tree = tiny.plain_params(quantize_params(tiny.params(CONFIG), form), "float32")
    with tiny_llm(params=tree, config=CONFIG) as llm:
        assert answers(llm) == found
