"""The benchmark's texts repeat as much as they are said to, and its sampler draws them."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxinfer import SamplerState
from scripts.drafts.measure import drafts_lines, drafts_report
from scripts.drafts.texts import KINDS, make_texts, scripted_sampler

SIZES = {"prompt_len": 400, "output_len": 300, "vocab_size": 5000}


def share_in_prompt(text, length=5):
    """The share of an answer's runs of tokens that stand in the prompt, or before in the answer."""
    seen = {tuple(text.prompt[i : i + length]) for i in range(len(text.prompt))}
    found = 0
    runs = [tuple(text.answer[i : i + length]) for i in range(len(text.answer) - length + 1)]
    for run in runs:
        found += run in seen
        seen.add(run)
    return found / len(runs)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("copy", 1.0, 1.0), ("edits", 0.68, 0.8), ("code", 0.2, 0.36), ("free", 0.0, 0.0)],
)
def test_texts_repeat_as_much_as_they_are_said_to(kind, low, high):
    texts = make_texts(kind, 2, **SIZES)
    assert len({tuple(text.prompt) for text in texts}) == 2
    for text in texts:
        assert (len(text.prompt), len(text.answer)) == (400, 300)
        assert low <= share_in_prompt(text) <= high


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="no texts 'prose'; there are copy, edits"):
        make_texts("prose", 1, **SIZES)


def test_the_sampler_draws_the_text_of_a_seed_by_position():
    texts = [text for kind in KINDS for text in make_texts(kind, 2, **SIZES)]
    state = SamplerState(
        positions=jnp.array([400, 699]),
        temperature=jnp.zeros(2),
        seeds=jnp.array([[3, 0], [7, 0]], jnp.uint32),
        last_token_ids=jnp.zeros(2, jnp.int32),
        prompt_lengths=jnp.zeros(2, jnp.int32),
    )
    drawn = scripted_sampler(texts)(jnp.zeros((2, 5000)), state, jnp.zeros(2))
    assert np.asarray(drawn).tolist() == [texts[3].answer[0], texts[7].answer[-1]]


@pytest.mark.slow
def test_answers_with_drafts_and_without_are_the_texts():
    drafts = {"method": "ngram", "prompt_lookup_min": 2}
    report = drafts_report(
        None,
        engine_arguments={"speculative_config": drafts, "show_progress": False},
        rows=[2],
        prompt_len=60,
        output_len=50,
        repeats=1,
    )
    cases = report["cases"]
    assert cases["copy, 2"]["drafts"]["gained"] > 3
    assert cases["free, 2"]["drafts"]["gained"] < 0.2
    assert all(case["plain"]["gained"] == 0 for case in cases.values())
    assert len(drafts_lines(report)) == len(cases) + 2
