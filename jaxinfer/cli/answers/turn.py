"""One turn of a chat: shows an answer as it streams, and keeps it in the conversation."""

from collections.abc import Generator, Iterable
from contextlib import closing

from jaxinfer.cli import terminal
from jaxinfer.cli.answers.answer import Answer, Piece
from jaxinfer.cli.conversation import Conversation
from jaxinfer.outputs import Content, Reasoning
from jaxinfer.outputs import Piece as Part
from jaxinfer.serving.parsers.answer import AnswerParser, content_of


def take_turn(
    conversation: Conversation,
    line: str,
    answer: Answer,
    pieces: Generator[Piece],
    *,
    inside: bool = False,
) -> tuple[str, bool]:
    """Show an answer, thinking dimmed; Ctrl-C stops it and keeps what has been said.

    Args:
        conversation: gets both messages, unless Ctrl-C comes before anything is said.
        pieces: pairs of a flag, True for text that is known to be thinking, and the text; closed at
            the end.
        inside: the prompt has opened the tag of thinking already.

    Returns:
        The answer without its thinking, and whether it is complete.

    Raises:
        KeyboardInterrupt: a second Ctrl-C.
        Exception: raised by `pieces`; the conversation is as before.
    """
    is_whole = False
    try:
        parser = _parser(inside)
        with closing(pieces):
            for is_marked, text in pieces:
                _show([Reasoning(text)] if is_marked else parser.feed(text))
        _show(parser.finish())
        is_whole = True
    except KeyboardInterrupt:  # at any point: only the contents of `answer` are certain
        pass
    terminal.end_line(was_cut=not is_whole)
    parser = _parser(inside)
    parts = [*parser.feed(answer.text), *(parser.finish() if is_whole else ())]
    said = content_of(parts).strip()
    if said or is_whole:
        conversation.keep(line, said)
    return said, is_whole


def is_thinking(text: str, *, inside: bool) -> bool:
    """True if an answer ends in the middle of thinking; `inside` as for `take_turn`."""
    parser = _parser(inside)
    parser.feed(text)
    return parser.reasoning_state == "open"


def _parser(inside: bool) -> AnswerParser:
    return AnswerParser(reasoning="qwen3", is_open=inside)


def _show(parts: Iterable[Part]) -> None:
    for part in parts:
        if isinstance(part, Reasoning | Content):
            terminal.show(part.text, dim=isinstance(part, Reasoning))
