"""An answer ends with any token that one of a model's files calls an end."""

import dataclasses
import json

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.config import EngineConfig
from jaxinfer.model.checkpoint.weights import save_params
from jaxinfer.model.generation_config import GenerationConfig
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.startup.model_files import (
    read_generation_config,
    read_tokenizer,
    usable_eos_token_ids,
)
from tests.model.text.small_tokenizer import build_backend, write_tokenizer
from tests.serving.small_llm import CONFIG, SETTINGS, small_params

END = build_backend().token_to_id("<|im_end|>")


def model(directory, config=(), generation=None, tokenizer="<|im_end|>"):
    """End tokens by file; None for no such file, and for a tokenizer that has none."""
    write_tokenizer(directory)
    (directory / "generation_config.json").unlink()
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    settings = {} if tokenizer is None else {"eos_token": tokenizer}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return dataclasses.replace(CONFIG, eos_token_ids=config)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tokenizer": None}, ()),
        ({}, (END,)),
        ({"config": (7,), "tokenizer": None}, (7,)),
        ({"config": (7, END)}, (END, 7)),
        ({"generation": 9}, (9, END)),
        ({"generation": [9, 8], "config": (8, 7)}, (9, 8, END, 7)),
        ({"generation": [9, CONFIG.vocab_size], "tokenizer": None}, (9,)),
        ({"tokenizer": {"content": "<|im_start|>"}, "config": (7,)}, (END - 1, 7)),
    ],
)
@pytest.mark.parametrize("skip_tokenizer", [False, True])
def test_end_tokens_are_those_of_all_files(tmp_path, files, expected, skip_tokenizer):
    config = model(tmp_path, **files)
    tokenizer = read_tokenizer(tmp_path, EngineConfig(skip_tokenizer_init=skip_tokenizer))
    generation = read_generation_config(tmp_path, tokenizer)
    if skip_tokenizer:
        expected = tuple(
            i for i in expected if i not in (END, END - 1) or i in config.eos_token_ids
        )
    assert sorted(usable_eos_token_ids(config, generation, tokenizer)) == sorted(expected)


def test_another_tokenizer_leaves_the_models_own_defaults(tmp_path):
    config = model(tmp_path / "model", generation=9, tokenizer=None)
    model(tmp_path / "tokenizer", generation=8)
    tokenizer = Tokenizer.from_directory(tmp_path / "tokenizer")
    generation = read_generation_config(tmp_path / "model", tokenizer)
    assert generation.eos_token_ids == (9,)
    assert usable_eos_token_ids(config, generation, tokenizer) == (9, 8, END)
    assert read_generation_config(None, tokenizer) == tokenizer.generation
    assert read_generation_config(None, None) == GenerationConfig()


def test_an_answer_ends_with_an_end_token_of_config_json_alone(tmp_path):
    """The other files name one that does not come."""
    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    save_params(small_params(), CONFIG, tmp_path)
    model(tmp_path, generation=END, tokenizer=None)
    with LLM(tmp_path, **SETTINGS) as llm:
        ids = llm.generate([[1, 2, 3]], greedy)[0].outputs[0].token_ids
    save_params(small_params(), dataclasses.replace(CONFIG, eos_token_ids=(ids[2],)), tmp_path)
    with LLM(tmp_path, **SETTINGS) as llm:
        answer = llm.generate([[1, 2, 3]], greedy)[0].outputs[0]
    assert answer.finish_reason == "stop"
    assert answer.token_ids == ids[: ids.index(ids[2]) + 1]
