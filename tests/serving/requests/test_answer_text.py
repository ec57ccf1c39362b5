"""Answers read in parts, token by token: tags that are tokens, stop strings in content alone."""

import itertools

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.parsers.answer import assemble, parse_answer
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.requests.answer_text import AnswerText
from tests.serving.constraints.grammar.grammars import bundled_tokenizer

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


def test_a_tag_within_a_call_that_has_ended_thinking_is_text():
    call = ['{"name": "f", "arguments": {"a": "', "</think>", '"}}']
    answer, _, _ = read(ids("<think>", "hm", "<tool_call>", *call, "</tool_call>", "Yes."))
    assert parts(answer) == ("hm", "Yes.", ['{"a": "</think>"}'])


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


LETTERS = [
    (
        "hermes",
        ["Write <tool_call>{} and </tool_call>."],
        "Write <tool_call>{} and </tool_call>.",
        [],
    ),
    ("hermes", ['{"a": "<tool_call>"}'], '{"a": "<tool_call>"}', []),
    ("hermes", ["a <tool_ca"], "a <tool_ca", []),
    ("hermes", ["a <tool_call", "<tool_call>", CALL, "</tool_call>"], "a <tool_call", [ARGUMENTS]),
    (
        "hermes",
        ["<tool_call>", CALL.replace("STOP", "</tool_call>"), "</tool_call>"],
        "",
        ['{"a": "</tool_call>"}'],
    ),
    (
        "qwen3_coder",
        [
            "<tool_call>",
            "\n<function=f>\n<parameter=a>\nx </tool_call> y\n</parameter>\n</function>\n",
            "</tool_call>",
        ],
        "",
        ['{"a": "x </tool_call> y"}'],
    ),
]


@pytest.mark.parametrize("length", [1, 3, 100])
@pytest.mark.parametrize(("parser", "tokens", "content", "calls"), LETTERS)
def test_letters_that_spell_a_tag_are_text(parser, tokens, content, calls, length):
    tokens = ids(*tokens)
    format = {"tools": parser}
    answer, _, _ = read(tokens, range(0, len(tokens), length), format=format)
    assert parts(answer) == ("", content, calls)
    stopped, _, _ = read(tokens, range(0, len(tokens), length), format=format, stop=["nowhere"])
    assert stopped == answer


def test_a_stop_string_may_be_a_tag_in_letters():
    answer, text, _ = read(ids("Write <tool_call>, then"), stop=["<tool_call>"])
    assert (answer.content, text.stop_string) == ("Write ", "<tool_call>")
    answer, text, _ = read(ids("Write <tool_"), stop=["<tool_"])
    assert (answer.content, text.stop_string) == ("Write ", "<tool_")


CODER_CALL = "\n<function=f>\n<parameter=a>\n204\n</parameter>\n</function>\n"
CODED = ["<tool_call>", CODER_CALL, "</tool_call>"]
PEERS = [
    # The prompt opens the thinking; the answer closes it, repeats its tag, or is cut.
    ("open", ["Some reasoning", "</think>", "The rest"], "Some reasoning", "The rest", 0),
    ("open", ["Some reasoning", "</think>"], "Some reasoning", "", 0),
    (
        "open",
        ["<think>", "Some reasoning", "</think>", "The rest"],
        "Some reasoning",
        "The rest",
        0,
    ),
    ("open", ["<think>", "Two\nlines", "</think>", "of\neach"], "Two\nlines", "of\neach", 0),
    ("open", ["Cut reasoning"], "Cut reasoning", "", 0),
    ("open", ["<think>", "Cut reasoning"], "Cut reasoning", "", 0),
    ("open", ["<think>", "</think>"], "", "", 0),
    ("open", [], "", "", 0),
    # The answer opens it.
    (
        "possible",
        ["<think>", "Some reasoning", "</think>", "The rest"],
        *("Some reasoning", "The rest"),
        0,
    ),
    ("possible", ["<think>", "Cut reasoning"], "Cut reasoning", "", 0),
    # A call within it ends it; text behind the call is content.
    ("open", ["I read.\n\n", *CODED], "I read.", "", 1),
    ("open", ["<think>", "I read.\n\n", *CODED], "I read.", "", 1),
    ("open", ["<think>", "I read.\n", *CODED, "trailing text"], "I read.", "trailing text", 1),
    ("possible", ["<think>", "I read.\n", *CODED, "\ntrailing"], "I read.", "trailing", 1),
    ("open", ["verify\n", *CODED, "\n", "</think>"], "verify", "", 1),
    (
        "open",
        ["<think>", "verify\n", *CODED, "</think>", "The answer."],
        "verify",
        "The answer.",
        1,
    ),
    # It is off.
    ("over", ["Plain content"], "", "Plain content", 0),
    ("over", ["I read.\n\n", *CODED], "", "I read.", 1),
    # Only the first closing tag counts, and no later opening one.
    ("open", ["First", "</think>", "Middle", "</think>", "Last"], "First", "Middle</think>Last", 0),
    ("open", ["<think>", "a", "<think>", "b", "</think>", "c"], "a<think>b", "c", 0),
]


@pytest.mark.parametrize("stop", [[], ["</"], ["</think> no"]], ids=["", "held", "held long"])
@pytest.mark.parametrize("length", [1, 2, 100])
@pytest.mark.parametrize(("stage", "tokens", "reasoning", "content", "num_calls"), PEERS)
def test_answers_that_peers_have_tests_of(
    stage, tokens, reasoning, content, num_calls, length, stop
):
    format = {**THINKS, "tools": "qwen3_coder", "stage": stage}
    stop = [] if "</think>" in content else stop
    tokens = ids(*tokens)
    answer, _, _ = read(tokens, range(0, len(tokens), length), format=format, stop=stop)
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert [call.arguments for call in answer.tool_calls] == ['{"a": "204"}'] * num_calls
    if stage != "over":
        text = bundled_tokenizer().decode(tokens, skip_special_tokens=False)
        by_text = parse_answer(
            text, reasoning="qwen3", tools="qwen3_coder", is_open=stage == "open"
        )
        assert by_text == answer


def test_a_tag_without_text_ends_white_space_at_a_stop_string():
    """White space that may have been before reasoning is content behind a lone ``</think>``."""
    tokens = ids("\n", "</think>", "<think>")
    for chunks in ([], [1], [2]):
        options = {"tokenizer": "special tags", "format": {**THINKS, "stage": "possible"}}
        answer, _, taken = read(tokens, chunks, stop=["\n"], **options)
        assert (answer.content, taken) == ("", 2)


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
        length = min(len(before.content), len(whole.content))
        assert before.content[:length] == whole.content[:length]
        assert before.tool_calls == whole.tool_calls
        assert before.reasoning == whole.reasoning
