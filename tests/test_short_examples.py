"""The short examples run on the bundled models, and stay short."""

import ast
import asyncio
import importlib.util
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxinfer import LLM, ModelConfig, SamplingParams, Tokenizer, load_params
from jaxinfer.model.checkpoint.hub import BUNDLED_MODELS
from scripts.bundled_model.balance import logits_and_routers
from tests.cli.service.running_service import RunningService

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SHORT = ("offline", "streaming", "client", "custom_sampler", "experts")


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SHORT)
def test_an_example_is_short_and_on_the_page(name):
    source = (EXAMPLES / f"{name}.py").read_text()
    assert len(source.splitlines()) <= 36
    assert ast.get_docstring(ast.parse(source)).count(f"python examples/{name}.py") == 1
    assert f"`{name}.py`" in (EXAMPLES / "README.md").read_text()


@pytest.mark.slow
def test_offline_completes_every_prompt(capsys):
    offline = load("offline")
    outputs = offline.generate()
    assert [output.prompt for output in outputs] == list(offline.PROMPTS)
    assert all(output.outputs[0].text for output in outputs)


@pytest.mark.slow
def test_streaming_gives_the_whole_text_in_pieces():
    pieces = asyncio.run(load("streaming").main())
    params = SamplingParams(max_tokens=16, seed=1)
    with LLM(show_progress=False) as llm:
        outputs = llm.generate(["Once upon a time", "Hello, fox"], params)
    assert ["".join(each) for each in pieces] == [output.outputs[0].text for output in outputs]
    assert all(len(each) > 1 for each in pieces)


@pytest.mark.slow
def test_the_client_gets_an_answer_from_a_server():
    service = RunningService()
    try:
        assert "".join(load("client").ask("What is 2 + 3?", service.url))
    finally:
        service.close()


@pytest.mark.slow
def test_the_sampler_writes_something_seeded():
    custom_sampler = load("custom_sampler")
    assert custom_sampler.main() == custom_sampler.main() != ""


@pytest.mark.slow
def test_experts_are_those_that_the_forward_pass_takes(capsys):
    experts = load("experts")
    runpy.run_path(str(EXAMPLES / "experts.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    directory = BUNDLED_MODELS["bundled-experts"]
    config, tokenizer = ModelConfig.from_directory(directory), Tokenizer.from_directory(directory)
    params = load_params(directory, config, "float32")
    route = jax.jit(logits_and_routers, static_argnums=1)
    for text in experts.TEXTS:
        token_ids = tokenizer.encode(text)
        _, routers = route(params, config, np.array(token_ids, np.int32))
        for i, token_id in enumerate(token_ids):
            likeliest = [np.argsort(-np.asarray(layer[i]), stable=True)[:2] for layer in routers]
            word = f"{tokenizer.decode([token_id])!r:12}"
            assert lines.pop(0) == " ".join([word, *(str(pair.tolist()) for pair in likeliest)])
    assert not lines
