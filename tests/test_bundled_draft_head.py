"""The bundled model's draft head is small, and its drafts are often right on held-out prompts."""

import pytest

from jaxinfer import LLM, SamplingParams
from jaxinfer.model.checkpoint.hub import BUNDLED_DRAFT_HEADS, BUNDLED_MODEL
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.draft_head.files import read_draft_head
from scripts.draft_head.__main__ import MAX_BYTES, head_config
from scripts.draft_head.acceptance import tokens_a_step

LEAST_TOKENS_A_STEP = 2.9
"""Of at most four, with three drafts."""


def test_the_files_are_small_and_fit_the_model():
    model = ModelConfig.from_directory(BUNDLED_MODEL)
    head = read_draft_head(BUNDLED_DRAFT_HEADS, model)
    assert head.config.states == head_config(model, 512).states == (1, 2, 3)
    assert not head.has_embedding
    assert sum(file.stat().st_size for file in BUNDLED_DRAFT_HEADS["eagle3"].iterdir()) <= MAX_BYTES


def test_a_step_gives_some_tokens_more():
    found = tokens_a_step("bundled", count=4)
    assert found["all"] >= LEAST_TOKENS_A_STEP


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_answers_are_those_without_the_head(temperature):
    sampling = SamplingParams(temperature=temperature, seed=5, max_tokens=60)
    prompts = ["Once upon a time", "37 + 45 ="]
    found = []
    for drafts in (None, {"method": "eagle3", "model": "bundled"}):
        with LLM(
            speculative_config=drafts, max_num_seqs=2, max_model_len=128, show_progress=False
        ) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert found[0] == found[1]
