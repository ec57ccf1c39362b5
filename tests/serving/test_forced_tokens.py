"""Answers begin with tokens that their request gives, as if these had been drawn."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxinfer import SamplingParams
from jaxinfer.serving.requests.completion_logprobs import start_logprobs
from jaxinfer.serving.requests.result import TokenScores
from tests.serving.small_llm import (
    GREEDY,
    MAX_MODEL_LEN,
    PROMPTS,
    held_blocks,
    reference_logprobs,
    small_llm,
)

SAMPLED = SamplingParams(
    temperature=0.9, top_k=20, seed=5, max_tokens=12, ignore_eos=True, logprobs=0
)
LONG = list(range(1, 41))


def run(llm, prompt, params):
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.error is None
    return output


def values(completion):
    pairs = zip(completion.logprobs, completion.token_ids, strict=True)
    return [entry[token_id].logprob for entry, token_id in pairs]


def check_logprobs(prompt, completion):
    expected = reference_logprobs([*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
    chosen = expected[range(len(completion.token_ids)), completion.token_ids]
    np.testing.assert_allclose(values(completion), chosen, atol=1e-5)
    assert completion.cumulative_logprob == pytest.approx(sum(values(completion)))


@pytest.mark.parametrize("logprobs", [0, 2])
@pytest.mark.parametrize("count", [1, 4, 11])
def test_an_answer_fed_back_goes_on_as_it_did(llm, count, logprobs):
    params = SAMPLED.clone(logprobs=logprobs)
    drawn = run(llm, LONG, params).outputs[0]
    forced = run(llm, LONG, params.clone(forced_token_ids=drawn.token_ids[:count])).outputs[0]
    assert forced.token_ids == drawn.token_ids
    assert forced.text == drawn.text
    np.testing.assert_allclose(values(forced), values(drawn), atol=1e-5)
    assert [list(entry) for entry in forced.logprobs] == [list(entry) for entry in drawn.logprobs]
    check_logprobs(LONG, forced)


@pytest.mark.parametrize("mode", ["temperature_logprobs", "processed_logprobs"])
def test_log_probabilities_are_those_that_the_engine_reports_of_drawn_ones(mode):
    params = SAMPLED.clone(min_p=0.01, logprobs=2, entropy=True, support=2, logprob_token_ids=[9])
    with small_llm(logprobs_mode=mode) as llm:
        drawn = run(llm, LONG, params).outputs[0]
        forced = run(llm, LONG, params.clone(forced_token_ids=drawn.token_ids[:7])).outputs[0]
        unlikely = run(llm, LONG, params.clone(forced_token_ids=[499, *drawn.token_ids[:3]]))
    assert forced.token_ids == drawn.token_ids
    for ours, theirs in zip(forced.logprobs, drawn.logprobs, strict=True):
        assert list(ours) == list(theirs)
        expected = [entry.logprob for entry in theirs.values()]
        np.testing.assert_allclose([e.logprob for e in ours.values()], expected, atol=1e-5)
    np.testing.assert_allclose(forced.entropies, drawn.entropies, atol=1e-5)
    assert [s.token_ids for s in forced.supports] == [s.token_ids for s in drawn.supports]
    first = unlikely.outputs[0].logprobs[0][499].logprob
    assert np.isneginf(first) == (mode == "processed_logprobs")  # it could not be drawn


def test_n_answers_go_on_from_there_and_the_tokens_are_fed_once(llm):
    llm.reset_prefix_cache()
    forced = [7, 8, 9, 10] * 4
    params = SAMPLED.clone(n=4, forced_token_ids=forced, max_tokens=22)
    output = run(llm, LONG, params)
    answers = [tuple(completion.token_ids) for completion in output.outputs]
    assert all(answer[:16] == tuple(forced) and len(answer) == 22 for answer in answers)
    assert len(set(answers)) > 1
    for completion in output.outputs:
        check_logprobs(LONG, completion)
    assert output.metrics.num_generated_tokens == 4 * 6
    assert output.prompt_token_ids == LONG


def test_penalties_and_limits_count_them(llm):
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True, presence_penalty=2.0)
    drawn = run(llm, PROMPTS[0], params).outputs[0]
    forced = run(llm, PROMPTS[0], params.clone(forced_token_ids=drawn.token_ids[:6])).outputs[0]
    assert forced.token_ids == drawn.token_ids
    assert forced.finish_reason == "length"
    assert forced.logprobs is None


def test_text_and_stop_strings_go_over_the_border(llm):
    drawn = run(llm, PROMPTS[0], SAMPLED).outputs[0]
    stop = drawn.text[2:4]
    wanted = run(llm, PROMPTS[0], SAMPLED.clone(stop=stop)).outputs[0]
    params = SAMPLED.clone(stop=stop, forced_token_ids=drawn.token_ids[:1])
    forced = run(llm, PROMPTS[0], params).outputs[0]
    assert (forced.text, forced.token_ids) == (wanted.text, wanted.token_ids)
    assert forced.stop_reason == stop
    assert len(forced.logprobs) == len(forced.token_ids)


def test_a_stream_begins_with_them(llm):
    params = SAMPLED.clone(forced_token_ids=[7, 8, 9], n=1)
    parts = [output.outputs[0] for output in llm.stream([LONG], params)]
    assert parts[0].token_ids[:3] == [7, 8, 9]
    tokens = list(itertools.chain.from_iterable(part.token_ids for part in parts))
    logprobs = list(itertools.chain.from_iterable(part.logprobs for part in parts))
    whole = run(llm, LONG, params).outputs[0]
    assert tokens == whole.token_ids
    assert logprobs == list(whole.logprobs)


def test_a_prompts_own_scores_come_with_them(llm):
    params = SAMPLED.clone(forced_token_ids=[7, 8], prompt_logprobs=0, prompt_logprob_start=30)
    output = run(llm, LONG, params)
    expected = reference_logprobs(LONG)
    found = [
        entry and entry[token].logprob
        for entry, token in zip(output.prompt_logprobs, LONG, strict=True)
    ]
    assert found[:30] == [None] * 30
    wanted = expected[range(29, 39), LONG[30:]]
    np.testing.assert_allclose(found[30:], wanted, atol=1e-5)
    check_logprobs(LONG, output.outputs[0])


def test_rollouts_take_them(llm):
    rollouts = llm.rollout([LONG, PROMPTS[0]], SAMPLED.clone(forced_token_ids=[7, 8]), n=2)
    assert rollouts.completion_ids[:, :2].tolist() == [[7, 8]] * 4
    expected = reference_logprobs([*LONG, 7])[-2:]
    np.testing.assert_allclose(rollouts.logprobs[0, :2], expected[[0, 1], [7, 8]], atol=1e-5)


@pytest.mark.slow
def test_preempted_and_chunked_they_are_scored_all_the_same():
    prompts = [LONG[i : i + 20] for i in range(3)]
    params = SAMPLED.clone(forced_token_ids=list(range(50, 60)), max_tokens=40)
    with small_llm(max_num_batched_tokens=16) as llm, held_blocks(llm, 7):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids[:10] == list(range(50, 60))
        check_logprobs(prompt, output.outputs[0])


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    forced=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    n=st.integers(1, 3),
    start=st.none() | st.integers(0, 29),
)
def test_any_prompt_with_any_tokens_is_scored_as_the_plain_forward_does(
    llm, prompt, forced, n, start
):
    scored = start is not None and start < len(prompt)
    params = SAMPLED.clone(
        n=n,
        forced_token_ids=forced,
        max_tokens=len(forced) + 2,
        prompt_logprobs=0 if scored else None,
        prompt_logprob_start=start if scored else 0,
    )
    output = run(llm, prompt, params)
    for completion in output.outputs:
        assert completion.token_ids[: len(forced)] == forced
        check_logprobs(prompt, completion)
    if scored:
        has = [entry is not None for entry in output.prompt_logprobs]
        assert has == [i >= max(start, 1) for i in range(len(prompt))]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 2}, "forced_token_ids has 2 entries, .*max_tokens must be more, got 2"),
        ({"structured_outputs": {"choice": ["a"]}}, "forced_token_ids don't go with structured"),
        ({"bad_words": ["a"]}, "forced_token_ids don't go with"),
        ({"support": 1, "min_tokens": 4}, "support of forced_token_ids doesn't go with penalties"),
        ({"forced_token_ids": [-1]}, "forced_token_ids entry must be from 0"),
    ],
)
def test_what_does_not_go_together_is_one_line(fields, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**({"forced_token_ids": [1, 2]} | fields))


def test_what_an_engine_can_not_do_exactly_is_one_line(llm):
    with pytest.raises(ValueError, match="forced_token_ids has token id 9000"):
        run(llm, LONG, GREEDY.clone(forced_token_ids=[9000]))
    many = [7] * (MAX_MODEL_LEN - 20)
    many_named = rf"{len(many)} of them forced_token_ids\), but max_model_len is {MAX_MODEL_LEN}"
    with pytest.raises(ValueError, match=many_named):
        run(llm, LONG, SamplingParams(max_tokens=None, forced_token_ids=many))
    params = SAMPLED.clone(forced_token_ids=[7], presence_penalty=1.0)
    run(llm, LONG, params)  # of the model's own logits
    with small_llm(logprobs_mode="processed_logprobs") as processed:
        with pytest.raises(ValueError, match="with processed log-probabilities don't go with"):
            run(processed, LONG, params)
        with pytest.raises(ValueError, match="with processed log-probabilities don't go with"):
            run(processed, LONG, params.clone(logprobs=None, logprob_token_ids=[9]))
        run(processed, LONG, params.clone(logprobs=None))


def test_a_callers_sampler_and_processed_log_probabilities_are_one_line():
    def likeliest(logits, state, keys):
        return logits.argmax(1).astype("int32")

    refused = pytest.raises(ValueError, match=r"don't go with LLM\(sampler")
    with small_llm(logprobs_mode="processed_logprobs", sampler=likeliest) as llm, refused:
        run(llm, LONG, SAMPLED.clone(forced_token_ids=[7]))


@pytest.mark.parametrize("ids", [[0], [5, 6]])
def test_they_may_be_an_array(llm, ids):
    params = SAMPLED.clone(forced_token_ids=np.array(ids))
    assert run(llm, LONG, params).outputs[0].token_ids[: len(ids)] == ids
    assert GREEDY.clone(stop_token_ids=np.array([0])).stop_token_ids == (0,)


def test_what_a_stop_string_cuts_leaves_a_sum_of_what_stays():
    """Tokens that could not have been drawn have log-probabilities of minus infinity."""
    for recording in (start_logprobs(0, None), start_logprobs(1, None)):
        assert recording is not None
        recording.extend(_scores([-1.0, -2.0, -np.inf]), 0, [3, 4, 5])
        assert recording.total == -np.inf
        recording.cut(2)
        assert recording.total == -3.0


def _scores(logprobs):
    return TokenScores(
        np.array([[3, 4, 5]], np.int32),
        np.ones((1, 3), np.bool_),
        np.array([logprobs], np.float32),
        top_ids=np.array([[[1]] * 3], np.int32),
        top_logprobs=np.zeros((1, 3, 1), np.float32),
    )
