"""Every way to write a prompt is understood, and everything else is named in one clear error."""

import contextlib

import numpy as np
import pytest

from jaxinfer import TextPrompt, TokensPrompt
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.chat_prompts import chat_prompts
from jaxinfer.serving.pooling.scoring import read_score_inputs
from jaxinfer.serving.requests.packed_ids import pack_ids
from jaxinfer.serving.requests.prompts import PromptReader, match_params
from tests.model.text.small_tokenizer import build_backend

TOKENIZER = Tokenizer(build_backend())
READER = PromptReader(TOKENIZER, vocab_size=TOKENIZER.vocab_size, max_model_len=16)
IDS_ONLY = PromptReader(None, vocab_size=100, max_model_len=16)


def ids(prompts, reader=READER):
    return [prompt.token_ids for prompt in reader.read(prompts)]


HI, ONCE = TOKENIZER.encode("hi"), TOKENIZER.encode("Once upon")


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        ("hi", [HI]),
        (["hi", "Once upon"], [HI, ONCE]),
        (("hi", "Once upon"), [HI, ONCE]),
        ([1, 2, 3], [[1, 2, 3]]),
        ((1, 2, 3), [[1, 2, 3]]),
        (range(3), [[0, 1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([(1, 2), [3]], [[1, 2], [3]]),
        (np.array([1, 2]), [[1, 2]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        ([np.int32(4), np.int64(5)], [[4, 5]]),
        ([np.array([1, 2]), [3]], [[1, 2], [3]]),
        ({"prompt": "hi"}, [HI]),
        (TextPrompt(prompt="hi"), [HI]),
        ([TokensPrompt(prompt_token_ids=[1, 2], cache_salt="a")], [[1, 2]]),
        ({"prompt_token_ids": [1, 2]}, [[1, 2]]),
        ({"prompt": "seen", "prompt_token_ids": [1, 2]}, [[1, 2]]),
        ([{"prompt": "hi"}, {"prompt_token_ids": [1]}, "Once upon", [7]], [HI, [1], ONCE, [7]]),
        ([], []),
    ],
)
def test_prompts_in_every_spelling(prompts, expected):
    assert ids(prompts) == expected


def test_ids_are_plain_integers():
    (prompt,) = READER.read(np.array([1, 2]))
    assert all(type(token_id) is int for token_id in prompt.token_ids)


@pytest.mark.parametrize("spelling", [list, tuple, np.array, lambda ids: list(map(np.int64, ids))])
def test_a_read_prompt_brings_its_ids_packed(spelling):
    (prompt,) = IDS_ONLY.read([spelling([0, 99, 7])])
    assert prompt.packed == pack_ids([0, 99, 7])


def test_text_and_salt_are_kept():
    first, second = READER.read(["hi", {"prompt": "Once upon", "cache_salt": "mine"}])
    assert (first.text, first.cache_salt) == ("hi", None)
    assert (second.text, second.cache_salt) == ("Once upon", "mine")


@pytest.mark.parametrize(
    ("prompts", "kind", "text"),
    [
        (None, TypeError, "prompts must be"),
        (3, TypeError, "prompts must be"),
        (b"hi", TypeError, "prompts must be"),
        ({1, 2}, TypeError, "prompts must be"),
        (["hi", None], TypeError, r"prompts\[1\] must be"),
        (["hi", b"x"], TypeError, r"prompts\[1\] must be"),
        (["hi", 3], TypeError, r"prompts\[1\] must be"),
        ("", ValueError, "prompt is empty"),
        (["hi", ""], ValueError, r"prompts\[1\] is empty"),
        ([[1], []], ValueError, r"prompts\[1\] is empty"),
        ([[1], [2, True]], TypeError, r"prompts\[1\]: token id True at position 1"),
        ([True, 1], TypeError, "prompt: token id True at position 0"),
        ([0.5, 1], TypeError, "prompt: token id 0.5 at position 0"),
        ([1, None], TypeError, "prompt: token id None at position 1"),
        ([1, "x"], TypeError, "prompt: token id 'x' at position 1"),
        ([1, [2]], TypeError, r"prompt: token id \[2\] at position 1"),
        (np.array([1.0]), TypeError, "token id 1.0 at position 0"),
        ([[1], [2, -1]], ValueError, r"prompts\[1\]: token id -1 at position 1 is outside"),
        ([1, TOKENIZER.vocab_size], ValueError, "outside the model's vocabulary"),
        ([1, 2**31], ValueError, "token id 2147483648 at position 1 is outside the model's"),
        ([2**63], ValueError, "outside the model's vocabulary"),
        ([3, -(2**70)], ValueError, "at position 1 is outside the model's vocabulary"),
        ([np.int64(2**40)], ValueError, "token id 1099511627776 at position 0 is outside"),
        ([[1]] * 2 + [[1] * 16], ValueError, r"prompts\[2\] has 16 tokens.*max_model_len 16"),
        ({"text": "hi"}, ValueError, "unknown key 'text'"),
        ({"promt": "hi"}, ValueError, "did you mean 'prompt'"),
        ({}, ValueError, 'needs "prompt" or "prompt_token_ids"'),
        ({"prompt": 3}, TypeError, '"prompt" must be a string'),
        ({"prompt_token_ids": "hi"}, TypeError, "must be a list of token ids"),
        ({"prompt_token_ids": 3}, TypeError, "must be a list of token ids"),
        ({"prompt": "hi", "cache_salt": ""}, ValueError, "cache_salt"),
        ({"prompt": "hi", "cache_salt": 3}, ValueError, "cache_salt"),
        ({"prompt": "hi", "cache_salt": "x" * 2000}, ValueError, "cache_salt"),
        ("\ud800", ValueError, "not valid Unicode"),
    ],
)
def test_what_is_no_prompt_is_named(prompts, kind, text):
    with pytest.raises(kind, match=text):
        READER.read(prompts)


def test_a_prompt_may_fill_the_model_when_nothing_is_generated():
    assert len(READER.read([1] * 16, num_outputs=0)[0].token_ids) == 16
    with pytest.raises(ValueError, match="17 tokens, but max_model_len is 16"):
        READER.read([1] * 17, num_outputs=0)


@pytest.mark.parametrize(("longest", "may_raise"), [(None, False), (16, False), (17, True)])
def test_raising_the_limit_is_advised_below_the_models_longest_context(longest, may_raise):
    reader = PromptReader(TOKENIZER, 2048, max_model_len=16, longest_context=longest)
    fix = "or raise max_model_len" if may_raise else ": this is the model's longest context"
    for prompt, room in (([1] * 17, 1), ([1] * 17, 0), ("a b " * 1000, 1)):
        with pytest.raises(ValueError, match=f"; shorten it ?{fix}$"):
            reader.read([prompt], num_outputs=room)


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda reader, text: reader.read(["a", text]), r"prompts\[1\]"),
        (lambda reader, text: read_score_inputs((text, "b"), reader), r"inputs\[0\]"),
        (
            lambda reader, text: chat_prompts([{"role": "user", "content": text}], reader),
            "messages",
        ),
    ],
)
def test_a_text_that_is_much_too_long_is_refused_before_it_is_tokenized(monkeypatch, read, name):
    def encode(*_, **__):
        raise AssertionError("tokenized")

    with contextlib.closing(Tokenizer.from_directory(BUNDLED_MODEL)) as tokenizer:
        monkeypatch.setattr(tokenizer, "encode", encode)
        monkeypatch.setattr(tokenizer, "encode_batch", encode)
        reader = PromptReader(tokenizer, 2048, max_model_len=100)
        with pytest.raises(ValueError, match=f"{name} has .* at least .* max_model_len is 100"):
            read(reader, "lots of text " * 1000)


def test_text_needs_a_tokenizer():
    with pytest.raises(ValueError, match=r"prompts\[1\] is text, and this engine has no tokenizer"):
        IDS_ONLY.read([[1], "hi"])
    assert ids([1, 2], IDS_ONLY) == [[1, 2]]


@pytest.mark.parametrize("field", ["stop", "bad_words"])
def test_words_need_a_tokenizer(field):
    with pytest.raises(ValueError, match=f"{field} needs a tokenizer"):
        IDS_ONLY.check_params(SamplingParams(**{field: ["x"]}))


@pytest.mark.parametrize(
    "params", [{"stop_token_ids": [100]}, {"allowed_token_ids": [100]}, {"logit_bias": {100: 1.0}}]
)
def test_ids_in_sampling_parameters_are_checked_against_the_model(params):
    with pytest.raises(ValueError, match="100"):
        IDS_ONLY.check_params(SamplingParams(**params))


def test_allowed_tokens_of_which_bad_words_leave_none_are_refused():
    (banned,), (other,) = (TOKENIZER.encode(text) for text in ("a", "b"))
    with pytest.raises(ValueError, match="allowed_token_ids: bad_words bans all of them"):
        READER.check_params(SamplingParams(allowed_token_ids=[banned], bad_words=["a"]))
    READER.check_params(SamplingParams(allowed_token_ids=[banned, other], bad_words=["a"]))


def test_a_bad_word_that_the_model_can_not_write_is_named():
    reader = PromptReader(TOKENIZER, vocab_size=5, max_model_len=16)
    with pytest.raises(ValueError, match="bad_words: 'zebra'"):
        reader.check_params(SamplingParams(bad_words=["zebra"]))


def test_a_bad_word_that_the_model_can_not_write_after_a_space_is_named():
    word = next(
        text
        for text in map(TOKENIZER.token_text, range(TOKENIZER.vocab_size))
        if text.isalpha() and max(TOKENIZER.encode(" " + text)) > max(TOKENIZER.encode(text))
    )
    reader = PromptReader(TOKENIZER, vocab_size=1 + max(TOKENIZER.encode(word)), max_model_len=16)
    with pytest.raises(ValueError, match=f"bad_words: '{word}'"):
        reader.check_params(SamplingParams(bad_words=[word]))


def test_a_model_that_does_not_think_has_no_budget_for_it():
    with pytest.raises(ValueError, match="thinking_token_budget: this model has no tokens"):
        IDS_ONLY.check_params(SamplingParams(thinking_token_budget=3))
    size = TOKENIZER.vocab_size
    assert PromptReader(TOKENIZER, vocab_size=size, max_model_len=16).thinks == (
        TOKENIZER.token_to_id("<think>") is not None
    )


DEFAULT, OTHER = SamplingParams(), SamplingParams(temperature=0.5)


def test_parameters_are_matched_to_prompts():
    assert match_params(None, 2, DEFAULT) == [DEFAULT, DEFAULT]
    assert match_params(OTHER, 2, DEFAULT) == [OTHER, OTHER]
    assert match_params([DEFAULT, OTHER], 2, DEFAULT) == [DEFAULT, OTHER]


def test_a_length_mismatch_gives_both_numbers():
    with pytest.raises(ValueError, match="3 prompts but 2 sampling_params"):
        match_params([DEFAULT, OTHER], 3, DEFAULT)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"temperature": 1}, "must be a SamplingParams, got dict"),
        ("greedy", "must be a SamplingParams, got str"),
        ([DEFAULT, None], r"sampling_params\[1\] must be a SamplingParams"),
    ],
)
def test_what_is_no_sampling_params_is_named(params, text):
    with pytest.raises(TypeError, match=text):
        match_params(params, 2, DEFAULT)
