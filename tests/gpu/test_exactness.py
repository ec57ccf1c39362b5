"""In float32 the engine's greedy tokens on a GPU are exactly those of a plain loop over `forward`,
however it batches: a few of the settings that test_batching_invariance.py crosses on a CPU."""

import pytest

from tests.gpu.bundled import SETTINGS
from tests.gpu.exact import engine, expected_tokens, greedy_tokens
from tests.gpu.internals import num_preemptions

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_greedy_tokens_equal_a_plain_loop_over_forward(setting):
    with engine(setting) as llm:
        assert greedy_tokens(llm) == expected_tokens()
        assert setting.tight == bool(num_preemptions(llm))


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_change_no_token(method):
    config = {"method": method, "num_speculative_tokens": 7}
    if method == "ngram":
        config["prompt_lookup_min"] = 1
    with engine(SETTINGS[3], speculative_config=config) as llm:
        assert greedy_tokens(llm) == expected_tokens()
        counts = {each.name: each for each in llm.get_metrics()}
        assert counts["jaxinfer:spec_decode_num_accepted_tokens"].value > 0
