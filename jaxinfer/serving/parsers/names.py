"""Names of the parsers, and the choice for a model's chat template; loads no parser."""

from collections.abc import Sequence

TOOL_PARSER_NAMES = ("hermes", "qwen3_coder", "qwen3_xml")
"""Values of `--tool-call-parser`, beside "auto" and "none"; the last two are one parser."""

REASONING_PARSER_NAMES = ("qwen3",)
"""Values of `--reasoning-parser`, beside "auto" and "none"."""

AUTO, NONE = "auto", "none"


def tool_parser_name(choice: str, chat_template: str | None) -> str | None:
    """The tool parser to use, of `TOOL_PARSER_NAMES`, or None for none.

    Args:
        choice: a name in `TOOL_PARSER_NAMES`, "none", or "auto" for the one that the template
            suggests.

    Raises:
        ValueError: there is no parser of that name.
    """
    _check("tool_call_parser", choice, TOOL_PARSER_NAMES)
    if choice != AUTO:
        return None if choice == NONE else {"qwen3_xml": "qwen3_coder"}.get(choice, choice)
    template = chat_template or ""
    if "<function=" in template:
        return "qwen3_coder"
    return "hermes" if "<tool_call>" in template else None


def reasoning_parser_name(choice: str, chat_template: str | None) -> str | None:
    """The reasoning parser to use; arguments and errors as for `tool_parser_name`."""
    _check("reasoning_parser", choice, REASONING_PARSER_NAMES)
    if choice != AUTO:
        return None if choice == NONE else choice
    return "qwen3" if "</think>" in (chat_template or "") else None


def _check(setting: str, choice: str, known: Sequence[str]) -> None:
    names = (AUTO, NONE, *known)
    if choice not in names:
        raise ValueError(f"{setting} must be one of {', '.join(names)}; got {choice!r}")
