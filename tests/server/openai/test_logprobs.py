"""Log-probabilities in OpenAI's forms: offsets in characters, finite numbers, likeliest first."""

import json
import math

import pytest

from jaxinfer.logprobs import Logprob
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.server.openai.logprobs import (
    CompletionLogprobsWriter,
    chat_logprobs,
    finite,
    prompt_logprobs,
)
from jaxinfer.server.openai.sse import encode
from tests.model.text.small_sentence_pieces import FORMS, build_pieces
from tests.model.text.small_tokenizer import write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    tokenizer = Tokenizer.from_directory(write_tokenizer(tmp_path_factory.mktemp("logprobs")))
    yield tokenizer
    tokenizer.close()


def entries_of(token_ids):
    return [{token_id: Logprob(-1.0, 1)} for token_id in token_ids]


def write(writer, token_ids, *, skip=True):
    return writer.write(token_ids, entries_of(token_ids), skip_special_tokens=skip)


def test_impossible_tokens_have_a_finite_log_probability():
    assert finite(-math.inf) == -9999.0
    assert finite(-1.5) == -1.5


def test_offsets_count_characters_of_the_text(tokenizer):
    text = "ab 🐈 cd"
    token_ids = tokenizer.encode(text)
    part = write(CompletionLogprobsWriter(tokenizer, as_ids=False), token_ids)
    for i, offset in enumerate(part["text_offset"]):
        assert text.startswith(tokenizer.decode(token_ids[:i]).rstrip("\ufffd"))
        assert offset == len(tokenizer.decode(token_ids[:i]).rstrip("\ufffd"))


@pytest.mark.parametrize("form", FORMS)
def test_offsets_leave_out_the_space_before_a_text_of_sentence_pieces(form):
    pieces = Tokenizer(build_pieces(form))
    prompt = pieces.encode("a b", add_special_tokens=False)
    text = pieces.decode(prompt)
    writer = CompletionLogprobsWriter(pieces, as_ids=False)
    writer.start_at(0, skip_special_tokens=False)
    offsets = write(writer, prompt, skip=False)["text_offset"]
    assert offsets == [len(pieces.decode(prompt[:i])) for i in range(len(prompt))]
    writer.start_at(len(text), prompt, skip_special_tokens=True)
    assert write(writer, [prompt[0], prompt[0]])["text_offset"] == [
        len(text),
        len(text) + len(pieces.token_bytes(prompt[0])),
    ]


def test_a_continuation_is_offset_by_the_prompt_even_within_a_character(tokenizer):
    prompt = tokenizer.encode("ab 🐈")[:-1]
    text = tokenizer.decode(prompt)
    assert text.endswith("\ufffd")
    writer = CompletionLogprobsWriter(tokenizer, as_ids=False)
    write(writer, prompt)
    writer.start_at(len(text), prompt, skip_special_tokens=True)
    own = tokenizer.encode("cd")
    part = write(writer, own)
    assert part["text_offset"][0] == len(text)
    assert "\ufffd" not in part["tokens"][0]
    assert write(writer, [own[0]])["text_offset"] == [len(text) + 2]


def test_of_tokens_with_one_text_the_likeliest_counts(tokenizer):
    first, second = tokenizer.encode("🐈")[:2]
    entry = {first: Logprob(-5.0, 9), second: Logprob(-1.0, 1)}
    writer = CompletionLogprobsWriter(tokenizer, as_ids=False)
    part = writer.write([first], [entry], skip_special_tokens=True)
    assert part["token_logprobs"] == [-5.0]
    if tokenizer.token_text(first) == tokenizer.token_text(second):
        assert part["top_logprobs"] == [{tokenizer.token_text(first): -1.0}]


def test_chat_has_the_likeliest_first_and_as_many_as_asked_for(tokenizer):
    entry = {3: Logprob(-4.0, 3), 1: Logprob(-0.5, 1), 2: Logprob(-math.inf, 2)}
    (token,) = chat_logprobs([3], [entry], 2, tokenizer, as_ids=True)["content"]
    assert token["token"] == "token_id:3"
    assert token["logprob"] == -4.0
    assert [top["token"] for top in token["top_logprobs"]] == ["token_id:1", "token_id:3"]


def test_prompts_have_theirs_by_token_id():
    entry = {3: Logprob(-math.inf, 3, "c")}
    assert json.loads(encode(prompt_logprobs([None, entry]))) == [
        None,
        {"3": {"logprob": -9999.0, "rank": 3, "decoded_token": "c"}},
    ]
