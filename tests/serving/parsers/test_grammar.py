"""Grammars of tool calls, by llguidance itself: what they admit is what the parsers read."""

import json

import pytest

from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.serving.parsers.answer import parse_answer
from jaxinfer.serving.parsers.grammar import TAGS, tool_grammar

llguidance = pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"days": 2}}\n</tool_call>'
CODER_WEATHER = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nSan\nJosé\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
CODER_NOW = "<tool_call>\n<function=now>\n</function>\n</tool_call>"
CODER_WRONG = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\ntwo\n</parameter>\n</function>\n</tool_call>"
)


@pytest.fixture(scope="module")
def tokenizer():
    return llguidance.LLTokenizer("byte")


def admits(tokenizer, text, choice, parser="hermes", **options):
    grammar = tool_grammar(TOOLS, choice, parser=parser, **options)["grammar"]
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    taken = matcher.try_consume_tokens(tokens)
    return taken == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "choice", "options"),
    [
        (WEATHER, "required", {}),
        (f"{WEATHER}\n{NOW}", "required", {}),
        (WEATHER, "weather", {}),
        (f"<think>\nhm\n</think>\n\n{NOW}", "required", {"reasoning": "possible"}),
        (NOW, "required", {"reasoning": "possible"}),
        (f"hm\n</think>\n\n{NOW}", "now", {"reasoning": "open"}),
        ("Hello.", "auto", {}),
        (f"Wait.\n{WEATHER}\n{NOW}", "auto", {"strict": ["weather"]}),
        (WRONG, "auto", {}),
        (f"<think>hm</think>Wait.{NOW}", "auto", {"reasoning": "possible"}),
    ],
)
def test_calls_that_are_asked_for_are_admitted_and_read(tokenizer, text, choice, options):
    assert admits(tokenizer, text, choice, **options)
    is_open = options.get("reasoning") == "open"
    answer = parse_answer(text, reasoning="qwen3", tools="hermes", is_open=is_open)
    assert len(answer.tool_calls) == text.count("<tool_call>")
    for call in answer.tool_calls:
        json.loads(call.arguments)


@pytest.mark.parametrize(
    ("text", "choice", "options"),
    [
        ("Hello.", "required", {}),
        (WRONG, "required", {}),
        (NOW, "weather", {}),
        (f"{NOW}\n{NOW}", "required", {"parallel": False}),
        (f"{NOW}\n{NOW}", "now", {}),
        (f"<think>hm</think>{NOW}", "required", {"reasoning": "over"}),
        ("<think>hm</think>Hello.", "required", {"reasoning": "possible"}),
        (WRONG, "auto", {"strict": ["weather"]}),
        (f"{NOW}{NOW}", "auto", {"parallel": False}),
    ],
)
def test_other_answers_are_not(tokenizer, text, choice, options):
    assert not admits(tokenizer, text, choice, **options)


@pytest.mark.parametrize(
    ("text", "choice", "is_admitted"),
    [
        (CODER_WEATHER, "required", True),
        (f"{CODER_NOW}\n{CODER_WEATHER}", "required", True),
        (f"Wait.\n{CODER_WEATHER}", "auto", True),
        (CODER_WRONG, "weather", False),
        (CODER_NOW, "weather", False),
        (WEATHER, "required", False),
    ],
)
def test_calls_of_qwen3_coder(tokenizer, text, choice, is_admitted):
    options = {"strict": ["weather"]} if choice == "auto" else {}
    assert admits(tokenizer, text, choice, "qwen3_coder", **options) == is_admitted
    if is_admitted:
        answer = parse_answer(text, tools="qwen3_coder", schemas=TOOLS)
        assert len(answer.tool_calls) == text.count("<tool_call>")
        days = [json.loads(call.arguments).get("days") for call in answer.tool_calls]
        assert days[-1] == 2


@pytest.mark.parametrize("choice", ["required", "weather", "auto"])
def test_tags_that_are_tokens_are_named_as_such(choice):
    """What is forced is admitted, where the tags are special tokens and where they are text."""
    vocabulary = Tokenizer.from_directory(BUNDLED_MODEL)
    tokens = [tag for tag in TAGS if vocabulary.token_to_id(tag) is not None]
    assert tokens == list(TAGS)
    own = llguidance.LLTokenizer(vocabulary.to_json(), n_vocab=2048, eos_token=[2041])
    options = {"reasoning": "possible", "strict": ["weather"], "tokens": tokens}
    for text in (WEATHER, f"<think>\nhm\n</think>\n\n{WEATHER}"):
        assert admits(own, text, choice, **options)
    assert not admits(own, WRONG, choice, **options)
    grammar = tool_grammar(TOOLS, "weather", parser="hermes", tokens=tokens)["grammar"]
    matcher = llguidance.LLMatcher(own, grammar)
    assert matcher.try_consume_tokens(forced := matcher.compute_ff_tokens()) == len(forced) > 1


def test_a_function_that_is_no_tool_is_refused():
    with pytest.raises(ValueError, match="'weather2', which is none of the tools"):
        tool_grammar(TOOLS, "weather2", parser="hermes")


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder"])
def test_keywords_that_no_grammar_enforces_are_refused_where_arguments_must_fit(parser):
    city = {"type": "string", "maxlength": 5}
    parameters = {"type": "object", "properties": {"city": city}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    message = "of 'weather': properties.city: 'maxlength' is no keyword that can be enforced"
    for choice, strict in (("required", ()), ("weather", ()), ("auto", ["weather"])):
        with pytest.raises(ValueError, match=message):
            tool_grammar([tool], choice, parser=parser, strict=strict)
    assert tool_grammar([tool, *TOOLS], "auto", parser=parser, strict=["none of them"])
