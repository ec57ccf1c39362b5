"""Parses an answer's text into reasoning, content and tool calls, whole or as it streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxinfer.outputs import CallArguments, CallStart, Content, Piece, Reasoning, new_call_id
from jaxinfer.serving.parsers.reasoning import ReasoningState
from jaxinfer.serving.parsers.registry import REASONING_PARSERS, TOOL_PARSERS
from jaxinfer.serving.parsers.tool_parser import ToolParser


@dataclass
class ToolCall:
    """One call of an answer.

    Attributes:
        name: the function's name.
        arguments: JSON text; cut where the answer was cut.
        id: unique; not compared.
    """

    name: str
    arguments: str
    id: str = field(default_factory=new_call_id, compare=False)


@dataclass
class ParsedAnswer:
    """A whole answer.

    Attributes:
        reasoning: empty if there is none.
        content: empty if there is none.
        tool_calls: the calls, in order.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


class AnswerParser:
    """Splits an answer that comes in parts.

    Args:
        reasoning: name of a reasoning parser; None leaves reasoning in the content.
        tools: name of a tool parser; None leaves calls in the content.
        is_open: the prompt has opened the reasoning already.
        schemas: the request's tools.
        parallel: pass on more than the first call.
    """

    def __init__(
        self,
        *,
        reasoning: str | None = None,
        tools: str | None = None,
        is_open: bool = False,
        schemas: Sequence[Mapping[str, Any]] = (),
        parallel: bool = True,
    ) -> None:
        self._reasoning = (
            REASONING_PARSERS[reasoning](is_open=is_open, calls=tools is not None)
            if reasoning
            else None
        )
        self._tools = TOOL_PARSERS[tools](schemas) if tools else None
        self._parallel = parallel

    @property
    def reasoning_state(self) -> ReasoningState:
        """The reasoning's state: the part still to come; "over" if no reasoning is parsed."""
        return "over" if self._reasoning is None else self._reasoning.state

    @property
    def is_in_content(self) -> bool:
        """True if more text would be content, unless it begins a call."""
        return self.reasoning_state == "over" and (self._tools is None or self._tools.is_in_content)

    def feed(self, text: str, state: ReasoningState | None = None) -> list[Piece]:
        """The pieces that are certain once `text` has come.

        Args:
            state: the reasoning's state, if tokens decide it and the text has no tags of it; see
                `Qwen3ReasoningParser.feed_at`. None: tags in the text decide.
        """
        if self._reasoning is None:
            return self._wanted(_fed(self._tools, text))
        if state is None:
            return self._split(self._reasoning.feed(text))
        return self._split(self._reasoning.feed_at(text, state))

    def finish(self) -> list[Piece]:
        """The rest, at the end of the answer. The parser is not used again."""
        rest = self._split(self._reasoning.finish()) if self._reasoning else []
        return rest + self._wanted(self._tools.finish() if self._tools else ())

    def _split(self, pieces: Sequence[Piece]) -> list[Piece]:
        split: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Content):
                split += self._wanted(_fed(self._tools, piece.text))
            else:
                split.append(piece)
        return split

    def _wanted(self, pieces: Sequence[Piece]) -> list[Piece]:
        if self._parallel:
            return list(pieces)
        return [p for p in pieces if not isinstance(p, (CallStart, CallArguments)) or p.index == 0]


def parse_answer(text: str, **options: Any) -> ParsedAnswer:
    """Split a whole answer, such as one of `LLM.chat`; options as for `AnswerParser`."""
    parser = AnswerParser(**options)
    return assemble([*parser.feed(text), *parser.finish()])


def assemble(pieces: Sequence[Piece]) -> ParsedAnswer:
    """All pieces of an answer, put together."""
    reasoning: list[str] = []
    content: list[str] = []
    starts: list[CallStart] = []
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        match piece:
            case Reasoning(text):
                reasoning.append(text)
            case Content(text):
                content.append(text)
            case CallStart():
                starts.append(piece)
            case CallArguments(index, text):
                arguments.setdefault(index, []).append(text)
    calls = [
        ToolCall(each.name, "".join(arguments.get(each.index, ())), each.id) for each in starts
    ]
    return ParsedAnswer("".join(reasoning), "".join(content), calls)


def content_of(pieces: Sequence[Piece]) -> str:
    """The text of the content among pieces."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Content))


def _fed(parser: ToolParser | None, text: str) -> Sequence[Piece]:
    if parser is not None:
        return parser.feed(text)
    return [Content(text)] if text else ()
