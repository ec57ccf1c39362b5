"""Requests that ask for entropy, support or labels get them, and change nothing for others."""

import dataclasses
import json

import numpy as np
import pytest

from jaxinfer import SamplingParams
from tests.serving.small_llm import (
    GREEDY,
    PROMPTS,
    held_blocks,
    ids,
    reference_logits,
    reference_logprobs,
    small_llm,
)

MEASURED = SamplingParams(
    temperature=0.8,
    top_k=6,
    top_p=0.95,
    seed=3,
    max_tokens=8,
    ignore_eos=True,
    logprobs=0,
    entropy=True,
    support=3,
    logprob_token_ids=[7, 300],
)
PLAIN = MEASURED.clone(entropy=False, support=None, logprob_token_ids=None)


def completions(llm, prompts, params, **more):
    outputs = llm.generate(prompts, params, use_tqdm=False, **more)
    return [completion for output in outputs for completion in output.outputs]


def entropies(logprobs):
    return -(np.exp(logprobs) * logprobs).sum(-1)


def check(prompt, completion):
    """Compare what was measured with the plain forward."""
    count = len(completion.token_ids)
    logprobs = reference_logprobs([*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
    np.testing.assert_allclose(completion.entropies, entropies(logprobs), atol=1e-5)
    for i, entry in enumerate(completion.logprobs):
        assert next(iter(entry)) == completion.token_ids[i]
        for token_id in (completion.token_ids[i], 7, 300):
            assert entry[token_id].logprob == pytest.approx(logprobs[i, token_id], abs=1e-5)
    logits = reference_logits([*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
    assert len(completion.supports) == len(completion.logprobs) == count
    for row, support, token_id in zip(
        logits, completion.supports, completion.token_ids, strict=True
    ):
        scaled = row / 0.8
        scaled = scaled - np.log(np.exp(scaled).sum())
        kept = np.argsort(-scaled, kind="stable")[:6]
        reached = np.exp(scaled[kept]).cumsum() / np.exp(scaled[kept]).sum()
        kept = kept[: 1 + np.searchsorted(reached, 0.95)]
        assert support.num_tokens == len(kept)
        assert token_id in kept
        assert support.token_ids == kept[:3].tolist()
        mass = np.log(np.exp(scaled[kept]).sum())
        assert support.log_mass == pytest.approx(mass, abs=1e-5)
        assert support.entropy == pytest.approx(entropies(scaled[kept] - mass), abs=1e-5)
        assert support.least_logprob == pytest.approx(scaled[kept[-1]] - mass, abs=1e-5)


def test_all_is_of_the_plain_forward_and_changes_no_token(llm):
    found = completions(llm, PROMPTS, MEASURED.clone(n=2))
    plain = completions(llm, PROMPTS, PLAIN.clone(n=2))
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]
    for i, completion in enumerate(found):
        check(PROMPTS[i // 2], completion)
    assert plain[0].entropies is plain[0].supports is None
    assert [list(entry) for entry in plain[0].logprobs] == [[t] for t in plain[0].token_ids]


def test_neighbours_in_a_batch_are_as_they_are_alone(llm):
    params = [GREEDY, MEASURED, GREEDY.clone(logprobs=2, presence_penalty=1.0)]
    alone = [completions(llm, [p], q)[0] for p, q in zip(PROMPTS, params, strict=True)]
    together = completions(llm, PROMPTS, params)
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    check(PROMPTS[1], together[1])
    assert together[0].logprobs is together[0].entropies is None


@pytest.mark.parametrize("wanted", [{"entropy": True}, {"support": 0}, {"logprob_token_ids": [5]}])
def test_each_is_had_alone(llm, wanted):
    params = GREEDY.clone(**wanted)
    (completion,) = completions(llm, [PROMPTS[2]], params)
    assert completion.token_ids == ids(llm.generate([PROMPTS[2]], GREEDY, use_tqdm=False))[0]
    assert (completion.entropies is not None) == params.entropy
    if params.support is not None:
        assert [(s.num_tokens, s.token_ids) for s in completion.supports] == [(1, [])] * 6
        assert {s.entropy for s in completion.supports} == {0.0}
    has_labels = params.logprob_token_ids is not None
    assert (completion.logprobs is not None) == has_labels
    assert not has_labels or all(5 in entry for entry in completion.logprobs)


def test_an_output_with_all_of_it_is_json(llm):
    (output,) = llm.generate([PROMPTS[0]], MEASURED.clone(prompt_logprobs=1), use_tqdm=False)
    assert json.loads(json.dumps(dataclasses.asdict(output)))["outputs"][0]["supports"]


def test_streamed_parts_add_up(llm):
    (whole,) = completions(llm, [PROMPTS[0]], MEASURED)
    parts = [output.outputs[0] for output in llm.stream([PROMPTS[0]], MEASURED)]
    assert [e for part in parts for e in part.entropies] == pytest.approx(whole.entropies)
    assert [s.token_ids for part in parts for s in part.supports] == [
        s.token_ids for s in whole.supports
    ]


def test_a_stop_string_cuts_what_was_measured_with_the_tokens(llm):
    (whole,) = completions(llm, [PROMPTS[0]], MEASURED)
    stop = whole.text[len(whole.text) // 2 :][:1]
    (cut,) = completions(llm, [PROMPTS[0]], MEASURED.clone(stop=stop))
    assert len(cut.token_ids) < len(whole.token_ids)
    assert len(cut.token_ids) == len(cut.entropies) == len(cut.supports) == len(cut.logprobs)


def test_preempted_requests_keep_what_was_measured():
    params = MEASURED.clone(max_tokens=40)
    with small_llm() as llm, held_blocks(llm, 6):
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        check(prompt, output.outputs[0])


def test_a_prompt_has_entropies_where_its_logprobs_are_asked_for(llm):
    params = GREEDY.clone(prompt_logprobs=0, entropy=True)
    (output,) = llm.generate([PROMPTS[2]], params, use_tqdm=False)
    assert output.prompt_entropies[0] is None
    wanted = entropies(reference_logprobs(PROMPTS[2])[:-1])
    np.testing.assert_allclose(output.prompt_entropies[1:], wanted, atol=1e-5)
    (without,) = llm.generate([PROMPTS[2]], GREEDY.clone(entropy=True), use_tqdm=False)
    assert without.prompt_entropies is without.prompt_logprobs is None


def test_grammars_that_could_append_tokens_undrawn_measure_them(llm):
    params = SamplingParams(
        temperature=0.0, max_tokens=20, entropy=True, structured_outputs={"choice": ["aaaaaa"]}
    )
    (completion,) = completions(llm, [PROMPTS[0]], params)
    assert completion.finish_reason == "stop"
    assert len(completion.entropies) == len(completion.token_ids)


def test_drafts_are_left_to_others():
    config = {"method": "ngram", "num_speculative_tokens": 3}
    with small_llm(speculative_config=config) as llm:
        found, drafted = completions(llm, PROMPTS[:2], [MEASURED, GREEDY.clone(max_tokens=30)])
    check(PROMPTS[0], found)
    assert len(drafted.token_ids) == 30


def test_rollouts_have_them_as_arrays(llm):
    params = MEASURED.clone(logprob_token_ids=None)
    rollouts = llm.rollout(PROMPTS, params.clone(stop_token_ids=[5]), n=2, pad_to=(16, 10))
    mask = rollouts.completion_mask
    found = completions(llm, PROMPTS, params.clone(n=2))
    for i, completion in enumerate(found):
        np.testing.assert_allclose(rollouts.entropies[i][mask[i]], completion.entropies, rtol=1e-6)
        assert rollouts.support_sizes[i][mask[i]].tolist() == [
            s.num_tokens for s in completion.supports
        ]
        for row, support in zip(rollouts.support_ids[i], completion.supports, strict=False):
            assert row[row >= 0].tolist() == support.token_ids
    assert rollouts.support_ids.shape == (6, 10, 3)
    assert (rollouts.support_ids[~mask] == -1).all()
    assert not rollouts.log_masses[~mask].any()
    assert llm.rollout(PROMPTS, PLAIN.clone(max_tokens=2)).entropies is None
    with pytest.raises(ValueError, match="no place for logprob_token_ids"):
        llm.rollout(PROMPTS, MEASURED)


def test_a_sampler_of_the_callers_has_no_support_that_is_known():
    def likeliest(logits, state, keys):
        return logits.argmax(1).astype("int32")

    with small_llm(sampler=likeliest) as llm:
        with pytest.raises(ValueError, match="support doesn't go with LLM\\(sampler"):
            llm.generate(PROMPTS, MEASURED, use_tqdm=False)
        (completion,) = completions(llm, [PROMPTS[0]], MEASURED.clone(support=None))
    logprobs = reference_logprobs([*PROMPTS[0], *completion.token_ids])[2:-1]
    np.testing.assert_allclose(completion.entropies, entropies(logprobs), atol=1e-5)


def test_more_ids_than_the_engine_reports_are_refused(llm):
    with pytest.raises(ValueError, match="support asks for 21, but max_logprobs is 20"):
        llm.generate(PROMPTS, GREEDY.clone(support=21), use_tqdm=False)
    with pytest.raises(ValueError, match="logprob_token_ids has token id 9000"):
        llm.generate(PROMPTS, GREEDY.clone(logprob_token_ids=[9000]), use_tqdm=False)
