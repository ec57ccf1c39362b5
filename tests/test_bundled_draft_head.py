"""The bundled model's draft heads are small, and their drafts often right on held-out prompts."""

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.checkpoint.hub import BUNDLED_DRAFT_HEADS, BUNDLED_MODEL
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.files import read_draft_head
from jaxinfer.model.draft_head.readers import READERS
from jaxinfer.serving.programs.speculative.heads import HEADS
from scripts.draft_head import dflash, eagle3
from scripts.draft_head.__main__ import MAX_BYTES
from scripts.draft_head.acceptance import tokens_a_step

LEAST_TOKENS_A_STEP = {"eagle3": 2.9, "dflash": 3.4}
"""Of at most four with "eagle3", and eight with "dflash"."""


@pytest.mark.parametrize("method", HEADS)
def test_the_files_are_small_and_fit_the_model(method):
    model = ModelConfig.from_directory(BUNDLED_MODEL)
    directory = BUNDLED_DRAFT_HEADS[method]
    head = read_draft_head(directory, model, READERS[method])
    made = {"eagle3": eagle3, "dflash": dflash}[method].head_config(model)
    assert head.config.states == made.states == (1, 2, 3)
    assert head.own == {"eagle3": ("lm_head",), "dflash": ()}[method]
    assert sum(file.stat().st_size for file in directory.iterdir()) <= MAX_BYTES


@pytest.mark.parametrize("method", HEADS)
def test_a_step_gives_some_tokens_more(method):
    found = tokens_a_step(method, "bundled", count=4)
    assert found["all"] >= LEAST_TOKENS_A_STEP[method]


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_answers_are_those_without_the_head(method, temperature):
    sampling = SamplingParams(temperature=temperature, seed=5, max_tokens=60)
    prompts = ["Once upon a time", "37 + 45 ="]
    found = []
    for drafts in (None, {"method": method, "model": "bundled"}):
        with LLM(
            speculative_config=drafts, max_num_seqs=2, max_model_len=128, show_progress=False
        ) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]
