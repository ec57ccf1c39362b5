"""The registry of tool parsers and reasoning parsers, by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxinfer.serving.parsers.hermes import HermesToolParser
from jaxinfer.serving.parsers.qwen3_coder import Qwen3CoderToolParser
from jaxinfer.serving.parsers.reasoning import Qwen3ReasoningParser
from jaxinfer.serving.parsers.tool_parser import ToolParser

ToolParserFactory = Callable[[Sequence[Mapping[str, Any]]], ToolParser]

TOOL_PARSERS: Mapping[str, ToolParserFactory] = {
    "hermes": HermesToolParser,
    "qwen3_coder": Qwen3CoderToolParser,
    "qwen3_xml": Qwen3CoderToolParser,
}
"""Tool parsers by the names in `TOOL_PARSER_NAMES`; each is called with a request's tools."""

REASONING_PARSERS: Mapping[str, type[Qwen3ReasoningParser]] = {"qwen3": Qwen3ReasoningParser}
"""Reasoning parsers by the names in `REASONING_PARSER_NAMES`; called with `is_open` and `calls`."""
