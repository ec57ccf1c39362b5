"""Prompts that are too long keep their last tokens, where the caller asks for it."""

import pytest

from jaxinfer import SamplingParams
from tests.serving.small_llm import GREEDY, MAX_MODEL_LEN, greedy_reference, reference_logprobs

LONG = [i % 300 + 1 for i in range(200)]


@pytest.mark.parametrize(("wanted", "kept"), [(1, 1), (7, 7), (-1, MAX_MODEL_LEN - 1), (None, 20)])
def test_the_last_tokens_are_kept(llm, wanted, kept):
    prompt = LONG if wanted is not None else LONG[-20:]
    params = GREEDY.clone(truncate_prompt_tokens=wanted, n=2, prompt_logprobs=0)
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    assert output.prompt_token_ids == LONG[-kept:]
    count = min(6, MAX_MODEL_LEN - kept)
    for completion in output.outputs:
        assert completion.token_ids == greedy_reference(LONG[-kept:], count)
    expected = reference_logprobs(LONG[-kept:])
    assert len(output.prompt_logprobs) == kept
    for i, entries in enumerate(output.prompt_logprobs[1:]):
        token = output.prompt_token_ids[i + 1]
        assert entries[token].logprob == pytest.approx(expected[i, token], abs=1e-4)


def test_a_text_far_too_long_is_cut_and_stays_the_callers(llm, tokenizer):
    text = "Once upon a time " * 200
    last = tokenizer.encode(text)[-9:]
    params = GREEDY.clone(truncate_prompt_tokens=9)
    (output,) = llm.generate(text, params, use_tqdm=False)
    assert (output.prompt, output.prompt_token_ids) == (text, last)
    *_, piece = llm.stream(text, params)
    assert piece.prompt_token_ids == last
    with pytest.raises(ValueError, match="max_model_len"):
        llm.generate([text, text], [params, GREEDY], use_tqdm=False)


def test_a_conversation_far_too_long_is_cut(llm, tokenizer):
    messages = [{"role": "user", "content": "Once upon a time " * 200}]
    (output,) = llm.chat(messages, GREEDY.clone(truncate_prompt_tokens=-1), use_tqdm=False)
    text = tokenizer.apply_chat_template(messages)
    last = tokenizer.encode(text, add_special_tokens=False)[1 - MAX_MODEL_LEN :]
    assert (output.prompt, output.prompt_token_ids) == (text, last)
    with pytest.raises(ValueError, match="max_model_len"):
        llm.chat(messages, GREEDY, use_tqdm=False)


@pytest.mark.parametrize("value", [0, -2, True, 1.5])
def test_limits_that_keep_nothing_are_refused(value):
    with pytest.raises((TypeError, ValueError), match="truncate_prompt_tokens"):
        SamplingParams(truncate_prompt_tokens=value)


def test_a_limit_beyond_the_models_length_is_refused(llm):
    with pytest.raises(ValueError, match=r"truncate_prompt_tokens \(65\) exceeds max_model_len"):
        llm.generate([[1]], GREEDY.clone(truncate_prompt_tokens=65), use_tqdm=False)
