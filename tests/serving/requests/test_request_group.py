"""n completions of one prompt become one output."""

import numpy as np
import pytest

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.requests.new_request import NewRequest, Prompt
from jaxinfer.serving.requests.request_group import RequestGroup
from jaxinfer.serving.requests.result import PROMPT_LOGPROBS, SCORED, TokenScores


def group(token_ids=(1, 2, 3), kind="final", **params):
    prompt, params = Prompt(list(token_ids)), SamplingParams(**params)
    return RequestGroup(NewRequest(key="r", prompt=prompt, params=params, kind=kind), seed=7)


def prompt_scores(tokens, ok=True):
    tokens = np.asarray(tokens, np.int32)
    logprobs = -tokens.astype(np.float32)
    return TokenScores(tokens, np.full(tokens.shape, ok), logprobs, tokens)


def test_children_have_names_and_seeds_of_their_own_and_only_one_scores_the_prompt():
    requests = [c.request for c in group(n=3, prompt_logprobs=0).completions]
    assert [request.request_id for request in requests] == ["r/0", "r/1", "r/2"]
    assert [request.seed for request in requests] == [7, 8, 9]
    assert [request.params.prompt_logprobs for request in requests] == [0, None, None]


def test_a_final_output_waits_for_every_completion():
    made = group(n=2)
    made.completions[0].finish("length")
    assert made.output(1.0) is None
    made.completions[1].finish("stop")
    output = made.output(2.0)
    assert output.finished
    assert output.metrics.finished_time == 2.0
    assert [c.finish_reason for c in output.outputs] == ["length", "stop"]


@pytest.mark.parametrize("kind", ["cumulative", "delta"])
def test_other_outputs_do_not_wait(kind):
    assert not group(kind=kind).output(1.0).finished


def test_chunks_of_the_prompt_are_scored_in_place_also_when_computed_again():
    made = group(range(5), prompt_logprobs=0)
    assert made.take_readout(PROMPT_LOGPROBS, prompt_scores([1, 2]), 0)
    for _ in range(2):
        assert made.take_readout(PROMPT_LOGPROBS, prompt_scores([3, 4, 0]), 2)
    assert made.take_readout(PROMPT_LOGPROBS, prompt_scores([0]), 6)  # an output token
    made.completions[0].finish("length")
    entries = made.output(1.0).prompt_logprobs
    assert [entry and list(entry) for entry in entries] == [None, [1], [2], [3], [4]]


def test_a_chunk_that_is_not_finite_is_reported():
    bad = prompt_scores([2], ok=False)
    assert not group(prompt_logprobs=0).take_readout(PROMPT_LOGPROBS, bad, 0)
    # No scores were asked for: the columns' content means nothing.
    assert group().take_readout(PROMPT_LOGPROBS, bad, 0)


def test_times_are_those_of_the_first_and_latest_token():
    made = group(n=2, kind="cumulative")
    for i, now in enumerate([2.0, 5.0]):
        made.completions[i].token_ids += [7] * (i + 1)
        made.times.note(now)
    metrics = made.output(6.0).metrics
    assert (metrics.first_token_time, metrics.last_token_time) == (2.0, 5.0)
    assert metrics.num_generated_tokens == 3


@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_only_the_first_completion_scores_the_prompt_and_parameters_are_not_copied_for_each(
    prompt_logprobs,
):
    params = SamplingParams(n=3, prompt_logprobs=prompt_logprobs)
    group = RequestGroup(NewRequest(prompt=Prompt([1, 2]), params=params), seed=7)
    first, second, third = (completion.request.params for completion in group.completions)
    assert first is params
    assert second.prompt_logprobs is None
    assert second is third


def test_forced_tokens_are_scored_for_all_completions_by_one_in_any_order():
    made = group(n=2, forced_token_ids=[7, 8, 9], logprobs=0)
    first, second = made.completions
    assert first.request.scored == range(2, 5)
    assert not second.request.scored
    second.request.finish_reason = "stop"
    second.extend([4], prompt_scores([[4]]), 0)
    assert made.take_readout(SCORED, prompt_scores([8, 9]), 3)  # a chunk comes before another
    assert made.take_readout(SCORED, prompt_scores([7, 8]), 0)
    first.finish("abort")
    outputs = made.output(1.0).outputs
    assert [o.token_ids for o in outputs] == [[7, 8, 9], [7, 8, 9, 4]]
    assert outputs[1].logprobs.values == [-7.0, -8.0, -9.0, -4.0]
    assert outputs[1].cumulative_logprob == -28.0


def test_without_their_scores_forced_tokens_are_all_there_is():
    made = group(forced_token_ids=[7, 8], logprobs=0)
    made.completions[0].finish("abort")
    (output,) = made.output(1.0).outputs
    assert (output.token_ids, output.logprobs, output.cumulative_logprob) == ([7, 8], None, None)
    assert not made.take_readout(SCORED, prompt_scores([7, 8], ok=False), 0)
