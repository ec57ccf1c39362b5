"""A prompt is scored from a token on, and what precedes it is found in the prefix cache."""

import pytest

from jaxinfer import SamplingParams
from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKey
from jaxinfer.serving.programs.kinds.scored_tokens import ScoredTokensKey
from jaxinfer.serving.programs.layout import PrefillShape
from tests.serving.small_llm import PROMPTS, reference_logprobs, small_llm

LONG = [(7 * i) % 400 + 1 for i in range(60)]
ONE = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)


def check(output, start):
    prompt = output.prompt_token_ids
    expected = reference_logprobs(prompt)
    assert len(output.prompt_logprobs) == len(prompt)
    for i, entry in enumerate(output.prompt_logprobs):
        if i < max(start, 1):
            assert entry is None
            continue
        assert entry[prompt[i]].logprob == pytest.approx(expected[i - 1, prompt[i]], abs=1e-5)
        assert entry[prompt[i]].rank == 1 + (expected[i - 1] > expected[i - 1, prompt[i]]).sum()
        assert int(expected[i - 1].argmax()) in entry


@pytest.mark.parametrize("start", [0, 1, 2, 30, 48, 49, 59])
def test_scores_from_there_on_are_those_of_the_plain_forward(llm, start):
    params = ONE.clone(prompt_logprob_start=start)
    for _ in range(2):  # the second time with a cached prefix
        (output,) = llm.generate([LONG], params, use_tqdm=False)
        check(output, start)


def test_blocks_before_it_are_found_again(llm):
    block_size = llm.engine_config.block_size
    llm.reset_prefix_cache()
    found = {}
    for start in (0, 1, 55, 3 * block_size, 3 * block_size + 1, 2 * block_size + 5):
        params = ONE.clone(prompt_logprob_start=start)
        (output,) = llm.generate([LONG], params, use_tqdm=False)
        found[start] = output.num_cached_tokens
    del found[0], found[1]
    assert found == {start: (start - 1) // block_size * block_size for start in found}


def launched(llm, params):
    """The keys of the programs that a request launches."""
    runner = llm._loaded.replicas[0].runner
    runner.launched = []
    llm.generate([LONG], params, use_tqdm=False)
    keys, runner.launched = [key for key, _ in runner.launched], None
    return keys


def test_chunks_before_it_compute_no_logits_of_their_tokens():
    with small_llm(max_num_batched_tokens=16, enable_prefix_caching=False) as llm:
        keys = launched(llm, ONE.clone(prompt_logprob_start=55))
        chunks = [key.all_tokens for key in keys if isinstance(key, PrefillShape)]
        assert chunks == [False] * 3 + [True]
        assert sum(isinstance(key, ScoredTokensKey) for key in keys) == 1


def test_a_request_for_all_of_it_runs_the_programs_of_old(llm):
    keys = launched(llm, ONE)
    assert any(isinstance(key, PromptLogprobsKey) for key in keys)
    assert not any(isinstance(key, ScoredTokensKey) for key in keys)


def test_requests_of_both_kinds_share_a_step(llm):
    params = [ONE, ONE.clone(prompt_logprob_start=9), ONE.clone(prompt_logprobs=None)]
    prompts = [PROMPTS[2], LONG[:20], PROMPTS[0]]
    first, second, third = llm.generate(prompts, params, use_tqdm=False)
    check(first, 0)
    check(second, 9)
    assert third.prompt_logprobs is None


def test_only_one_of_n_completions_scores_it(llm):
    params = ONE.clone(prompt_logprob_start=40, n=3, temperature=1.0)
    (output,) = llm.generate([LONG], params, use_tqdm=False)
    check(output, 40)
    assert len(output.outputs) == 3


def test_a_start_that_no_token_has_is_an_error(llm):
    with pytest.raises(ValueError, match="prompt_logprob_start is 60, but the prompt has 60"):
        llm.generate([LONG], ONE.clone(prompt_logprob_start=60), use_tqdm=False)
    with pytest.raises(ValueError, match="prompt_logprob_start says where prompt_logprobs begin"):
        SamplingParams(prompt_logprob_start=3)
