"""Every name of vLLM is taken, or its error says what to write instead."""

import dataclasses
import inspect

import pytest

import jaxinfer
from jaxinfer import LLM, EngineConfig, SamplingParams
from jaxinfer.checks import instead_of_vllm
from tests.serving.small_llm import GREEDY, small_llm
from tests.vllm_names import ENGINE_ARGUMENTS, METHODS, PACKAGE, SAMPLING_FIELDS


def fields(kind):
    return {field.name for field in dataclasses.fields(kind) if field.name != "_"}


@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_a_field_of_sampling_params(name):
    if name in fields(SamplingParams):
        return
    with pytest.raises(TypeError) as caught:
        SamplingParams(**{name: None})
    assert str(caught.value).endswith(f"no field {name!r}: {instead_of_vllm('sampling')[name]}")
    with pytest.raises(AttributeError, match=f"no field '{name}': "):
        setattr(SamplingParams(), name, None)


@pytest.mark.parametrize("name", ENGINE_ARGUMENTS)
def test_an_argument_of_the_engine(name):
    if name in fields(EngineConfig):
        return
    with pytest.raises(TypeError) as caught:
        EngineConfig.from_keywords({name: None}, owner="LLM")
    text = f"LLM() got an unknown keyword argument {name!r}: {instead_of_vllm('engine')[name]}"
    assert str(caught.value) == text


@pytest.fixture(scope="module")
def llm():
    with small_llm() as llm:
        yield llm


@pytest.mark.parametrize("name", METHODS)
def test_an_attribute_of_llm(llm, name):
    if hasattr(LLM, name):
        return
    with pytest.raises(AttributeError) as caught:
        getattr(llm, name)
    instead = instead_of_vllm("methods")[name]
    assert str(caught.value) == f"'LLM' object has no attribute {name!r}: {instead}"


@pytest.mark.parametrize("name", PACKAGE)
def test_a_name_of_the_package(name):
    if name in jaxinfer.__all__:
        return
    with pytest.raises(AttributeError) as caught:
        getattr(jaxinfer, name)
    assert str(caught.value).endswith(f": {instead_of_vllm('package')[name]}")
    assert not hasattr(jaxinfer, name)


def test_no_name_that_exists_has_another_in_its_place():
    assert not instead_of_vllm("sampling").keys() & fields(SamplingParams)
    assert not instead_of_vllm("engine").keys() & fields(EngineConfig)
    assert not instead_of_vllm("engine").keys() & inspect.signature(LLM).parameters.keys()
    assert not instead_of_vllm("package").keys() & set(jaxinfer.__all__)
    assert not [name for name in instead_of_vllm("methods") if hasattr(LLM, name)]


def test_an_error_within_a_property_stays_its_own():
    with pytest.raises(AttributeError, match="_handle"):
        _ = object.__new__(LLM).max_model_len


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_true_is_one_log_probability(name):
    assert getattr(SamplingParams(**{name: True}), name) == 1
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: False})


def test_one_priority_is_for_all_prompts():
    with small_llm(scheduling_policy="priority") as llm:
        outputs = llm.generate([[1, 2], [3]], GREEDY, use_tqdm=False, priority=1)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 6]
        with pytest.raises(TypeError, match="priority must be an integer, or a list"):
            llm.generate([[1, 2]], GREEDY, priority="high")


def test_log_probabilities_need_no_text():
    with LLM(
        max_model_len=64,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        num_kv_blocks=65,
        show_progress=False,
    ) as llm:
        params = SamplingParams(detokenize=False, logprobs=1, prompt_logprobs=True, temperature=0)
        (output,) = llm.generate("Once upon", params, use_tqdm=False)
        assert output.outputs[0].text == ""
        assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids)
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
