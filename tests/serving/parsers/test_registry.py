"""Which parsers a model gets: by name, or by what its chat template writes."""

import pytest

from jaxinfer.model.checkpoint.weights import resolve_model
from jaxinfer.serving.parsers.names import (
    REASONING_PARSER_NAMES,
    TOOL_PARSER_NAMES,
    reasoning_parser_name,
    tool_parser_name,
)
from jaxinfer.serving.parsers.registry import REASONING_PARSERS, TOOL_PARSERS


def test_every_name_has_its_parser():
    assert tuple(TOOL_PARSERS) == TOOL_PARSER_NAMES
    assert tuple(REASONING_PARSERS) == REASONING_PARSER_NAMES


def test_the_template_says_which_parsers_fit():
    bundled = (resolve_model(None, None) / "chat_template.jinja").read_text()
    assert tool_parser_name("auto", bundled) == "hermes"
    assert reasoning_parser_name("auto", bundled) == "qwen3"
    assert tool_parser_name("auto", "<tool_call>\n<function=") == "qwen3_coder"
    for template in (None, "", "{{ messages }}"):
        assert tool_parser_name("auto", template) is None
        assert reasoning_parser_name("auto", template) is None


def test_a_choice_wins():
    assert tool_parser_name("qwen3_coder", "<tool_call>") == "qwen3_coder"
    assert tool_parser_name("qwen3_xml", None) == "qwen3_coder"
    assert tool_parser_name("none", "<tool_call>") is None
    assert reasoning_parser_name("qwen3", None) == "qwen3"
    assert reasoning_parser_name("none", "</think>") is None


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="tool_call_parser must be one of auto, none, hermes, qw"):
        tool_parser_name("llama3_json", None)
    with pytest.raises(ValueError, match="reasoning_parser must be one of auto, none, qwen3"):
        reasoning_parser_name("deepseek_r1", None)
