"""The parsers by name, and which of them a model's chat template calls for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxinfer.serving.parsers.hermes import HermesToolParser
from jaxinfer.serving.parsers.pieces import StreamParser
from jaxinfer.serving.parsers.qwen3_coder import Qwen3CoderToolParser
from jaxinfer.serving.parsers.reasoning import Qwen3ReasoningParser

ToolParserFactory = Callable[[Sequence[Mapping[str, Any]]], StreamParser]

TOOL_PARSERS: Mapping[str, ToolParserFactory] = {
    "hermes": HermesToolParser,
    "qwen3_coder": Qwen3CoderToolParser,
}
"""By the names of `--tool-call-parser`; each is called with a request's tools."""

REASONING_PARSERS: Mapping[str, Callable[..., StreamParser]] = {"qwen3": Qwen3ReasoningParser}
"""By the names of `--reasoning-parser`; each is called with `is_open`."""

AUTO, NONE = "auto", "none"


def tool_parser_name(choice: str, chat_template: str | None) -> str | None:
    """The tool parser to use.

    Args:
        choice: a name in `TOOL_PARSERS`, "none", or "auto" for what the template writes.
        chat_template: the model's.

    Returns:
        A name in `TOOL_PARSERS`, or None for none.

    Raises:
        ValueError: there is no parser of that name.
    """
    _check("tool_call_parser", choice, TOOL_PARSERS)
    if choice != AUTO:
        return None if choice == NONE else choice
    template = chat_template or ""
    if "<function=" in template:
        return "qwen3_coder"
    return "hermes" if "<tool_call>" in template else None


def reasoning_parser_name(choice: str, chat_template: str | None) -> str | None:
    """The reasoning parser to use, as `tool_parser_name`."""
    _check("reasoning_parser", choice, REASONING_PARSERS)
    if choice != AUTO:
        return None if choice == NONE else choice
    return "qwen3" if "</think>" in (chat_template or "") else None


def _check(setting: str, choice: str, known: Mapping[str, Any]) -> None:
    names = (AUTO, NONE, *known)
    if choice not in names:
        raise ValueError(f"{setting} must be one of {', '.join(names)}; got {choice!r}")
