"""In float32 the engine's greedy tokens on a GPU are exactly those of a plain loop over `forward`,
however it batches: a few of the settings that test_batching_invariance.py crosses on a CPU."""

import pytest

from jaxinfer import Counter
from tests.gpu.bundled import SETTINGS
from tests.gpu.exact import engine, expected_tokens, greedy_tokens
from tests.gpu.internals import num_preemptions

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_greedy_tokens_equal_a_plain_loop_over_forward(setting):
    with engine(setting) as llm:
        assert greedy_tokens(llm) == expected_tokens()
        assert setting.tight == bool(num_preemptions(llm))


@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "prompt_lookup_min": 1},
        {"method": "suffix"},
        {"method": "eagle3", "model": "bundled"},
        {"method": "dflash", "model": "bundled"},
    ],
    ids=str,
)
def test_drafts_change_no_token(config):
    with engine(SETTINGS[1], speculative_config=config) as llm:
        assert greedy_tokens(llm) == expected_tokens()
        (accepted,) = (
            each.value
            for each in llm.get_metrics()
            if isinstance(each, Counter) and each.name.endswith("num_accepted_tokens")
        )
        assert accepted > 0
