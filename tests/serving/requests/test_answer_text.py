"""Answers read in parts, token by token: tags that are tokens, stop strings in content alone."""

import itertools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.parsers.answer import assemble
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.answer_text import AnswerText
from tests.serving.guided.grammars import bundled_tokenizer

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TAG_IDS = {tag: bundled_tokenizer().token_to_id(tag) for tag in TAGS}
THINKS = {"reasoning": "qwen3", "tags_are_tokens": True, "stage": "possible"}
CALLS = {**THINKS, "tools": "hermes"}
ARGUMENTS = '{"a": "STOP"}'
CALL = f'\n{{"name": "f", "arguments": {ARGUMENTS}}}\n'


def special_tokenizer():
    """The bundled model's, with tags that are special tokens."""
    backend = tokenizers.Tokenizer.from_str(bundled_tokenizer().to_json())
    backend.add_special_tokens([tokenizers.AddedToken(tag, special=True) for tag in TAGS])
    own = Tokenizer(
        backend,
        eos_token_ids=bundled_tokenizer().eos_token_ids,
        chat_template={"default": bundled_tokenizer().chat_template},
    )
    assert all(own.is_special(own.token_to_id(tag)) for tag in TAGS)
    return own


TOKENIZERS = {"plain tags": bundled_tokenizer(), "special tags": special_tokenizer()}


def ids(*parts):
    """Tokens of texts: a tag by itself is its token, and one within a text is its letters."""
    tokens = []
    for part in parts:
        own = TAG_IDS.get(part) or bundled_tokenizer().token_to_id(part)
        pieces = [[own]] if own is not None else map(bundled_tokenizer().encode, spelt(part))
        tokens += itertools.chain(*pieces)
    return tokens


def spelt(text):
    """The parts of a text between the brackets of tags, so that none of them is a token."""
    for i, part in enumerate(text.split("<")):
        yield from ("<",) * (i > 0)
        yield part


def read(tokens, chunks=(), *, tokenizer="plain tags", format=CALLS, **options):
    text = AnswerText(TOKENIZERS[tokenizer], AnswerFormat(**format), **options)
    pieces, taken, start = [], None, 0
    for stop in [*sorted(chunks), len(tokens)]:
        taken = text.append(tokens[start:stop])
        pieces += text.take()
        if taken is not None:
            taken += start
            break
        start = max(start, stop)
    text.finish()
    pieces += text.take()
    assert assemble(pieces) == assemble(text.pieces)
    return assemble(pieces), text, taken


def parts(answer):
    return answer.reasoning, answer.content, [call.arguments for call in answer.tool_calls]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["<think>", "\nhm\n", "</think>", "\n\nYes."], ("hm", "Yes.", [])),
        (["\n", "<think>", "hm", "</think>", "Yes."], ("hm", "Yes.", [])),
        (["<think>", "a </think> b", "</think>", "Yes."], ("a </think> b", "Yes.", [])),
        (["<think>", "hm\n\n", "<tool_call>", CALL, "</tool_call>"], ("hm", "", [ARGUMENTS])),
        (["<think>", "a <tool_call> b", "</think>", "Yes."], ("a <tool_call> b", "Yes.", [])),
        (["I look.\n", "<tool_call>", CALL, "</tool_call>"], ("", "I look.", [ARGUMENTS])),
        (["<think> in letters</think>"], ("", "<think> in letters</think>", [])),
        (["<think>", "hm"], ("hm", "", [])),
        (["\n\n"], ("", "\n\n", [])),
        ([], ("", "", [])),
    ],
)
def test_tokens_begin_and_end_reasoning_and_calls(tokenizer, tokens, expected):
    answer, _, _ = read(ids(*tokens), tokenizer=tokenizer)
    assert parts(answer) == expected


def test_special_tags_that_no_parser_reads_leave_no_text_and_others_do():
    tokens = ids("<think>", "hm", "</think>", "Yes", "<tool_call>", "<|im_start|>", "x")
    only_thinks, _, _ = read(tokens, tokenizer="special tags", format=THINKS)
    assert parts(only_thinks) == ("hm", "Yesx", [])
    only_thinks, _, _ = read(tokens, format=THINKS)
    assert parts(only_thinks) == ("hm", "Yes<tool_call>x", [])
    shown, _, _ = read(tokens, format=THINKS, skip_special_tokens=False)
    assert parts(shown) == ("hm", "Yes<tool_call><|im_start|>x", [])


@pytest.mark.parametrize(
    ("stage", "tokens", "expected"),
    [
        ("over", ["<think>", "hm", "</think>", "Yes."], ("", "<think>hm</think>Yes.", [])),
        ("over", ["</think>", "Yes."], ("", "</think>Yes.", [])),
        ("open", ["hm", "</think>", "\n\nYes."], ("hm", "Yes.", [])),
        ("open", ["<think>", "\nhm", "</think>", "Yes."], ("hm", "Yes.", [])),
        ("open", ["<tool_call>", CALL, "</tool_call>"], ("", "", [ARGUMENTS])),
        ("possible", ["</think>", "Yes."], ("", "</think>Yes.", [])),
        ("possible", ["Yes.", "<think>", "hm"], ("", "Yes.<think>hm", [])),
    ],
)
def test_the_prompt_says_where_the_answer_begins(stage, tokens, expected):
    answer, text, _ = read(ids(*tokens), format={**CALLS, "stage": stage})
    assert parts(answer) == expected
    assert (text.num_reasoning_tokens > 0) == bool(expected[0])


STOPPED = [
    (["<think>", "a STOP b", "</think>", "Yes STOP no"], ("a STOP b", "Yes ", []), True),
    (["Look ", "<tool_call>", CALL, "</tool_call>", "\nSTOP"], ("", "Look", [ARGUMENTS]), True),
    (["Look STOP", "<tool_call>", CALL], ("", "Look ", []), True),
    (["<tool_call>", CALL, "</tool_call>", "\nA STOP"], ("", "A ", [ARGUMENTS]), True),
    (["STOP it"], ("", "", []), True),
    (["ST", "<tool_call>", CALL, "</tool_call>", "OP"], ("", "STOP", [ARGUMENTS]), False),
    (["<tool_call>", CALL[:-4]], ("", "", [ARGUMENTS[:-2]]), False),
    (["<think>", "ST", "</think>", "OP"], ("ST", "OP", []), False),
    (["<think>", "a STOP b"], ("a STOP b", "", []), False),
    (["A ST"], ("", "A ST", []), False),
    (["A S", "TO"], ("", "A STO", []), False),
]


@pytest.mark.parametrize(("tokens", "expected", "is_found"), STOPPED)
def test_stop_strings_end_content_and_nothing_else(tokens, expected, is_found):
    answer, text, taken = read(ids(*tokens), stop=["STOP"])
    assert parts(answer) == expected
    assert (text.stop_string, taken is not None) == ("STOP" if is_found else None, is_found)


def test_a_stop_string_counts_the_tokens_that_it_needed():
    tokens = ids("<think>", "STOP", "</think>", "Yes\n", "\n", "and so on")
    answer, text, taken = read(tokens, stop=["\n\n"])
    assert (answer.content, text.stop_string) == ("Yes", "\n\n")
    assert taken == len(tokens) - len(ids("and so on"))
    answer, text, _ = read(tokens, stop=["\n\n"], include_stop=True)
    assert answer.content == "Yes\n\n"


def test_white_space_that_the_format_writes_is_no_stop_string():
    call = ["<tool_call>", CALL, "</tool_call>"]
    tokens = ids("<think>", "\nhm\n", "</think>", "\n\n", *call, "\n", *call)
    answer, text, _ = read(tokens, stop=["\n"])
    assert text.stop_string is None
    assert len(answer.tool_calls) == 2
    answer, text, _ = read(ids("I look.\n", *call), stop=["\n"])
    assert parts(answer) == ("", "I look.", [])


def test_stop_strings_count_only_from_min_tokens_on():
    tokens = ids("STOP", "STOP")
    answer, _, taken = read(tokens, stop=["STOP"], min_tokens=len(tokens))
    assert (answer.content, taken) == ("STOP", len(tokens))


def test_half_a_character_before_a_tag_stays_in_front_of_it():
    half = bundled_tokenizer().encode("東")[:1]
    assert not bundled_tokenizer().decode(half).isalpha()
    tokens = [*ids("<think>", "a"), *half, *ids("</think>", "b")]
    answer, _, _ = read(tokens)
    assert parts(answer) == ("a\ufffd", "b", [])


WORDS = [*TAGS, "a", "\n", " ", "<think>x", "S", "TOP", "é", "STOP", CALL, "<|im_end|>", "<"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=14),
    chunks=st.lists(st.integers(0, 60), max_size=9),
    stop=st.sampled_from([[], ["STOP"], ["\n", "TOPS"], [" ", "é"]]),
    stage=st.sampled_from(["possible", "open", "over"]),
    parser=st.sampled_from([None, "hermes", "qwen3_coder"]),
    are_tokens=st.booleans(),
    include=st.booleans(),
)
def test_any_chunks_make_the_same_answer(
    tokenizer, words, chunks, stop, stage, parser, are_tokens, include
):
    format = {"reasoning": "qwen3", "stage": stage, "tools": parser, "tags_are_tokens": are_tokens}
    options = {"tokenizer": tokenizer, "format": format, "stop": stop, "include_stop": include}
    tokens = ids(*words)
    whole, text, taken = read(tokens, **options)
    answer, other, also = read(tokens, [min(c, len(tokens)) for c in chunks], **options)
    assert (answer, also) == (whole, taken)
    assert other.num_reasoning_tokens == text.num_reasoning_tokens
    if taken is not None:
        # What comes before the token that completes the string is read the same.
        before, _, _ = read(tokens[: taken - 1], tokenizer=tokenizer, format=format)
        assert before.content.startswith(whole.content.removesuffix(text.stop_string))
        assert before.tool_calls == whole.tool_calls
        assert before.reasoning == whole.reasoning
