"""One turn of a chat: shows an answer as it streams, and keeps it in the conversation."""

from collections.abc import Generator
from contextlib import closing

from jaxinfer.cli import terminal
from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.thinking import ThinkingSplitter, spoken
from jaxinfer.cli.conversation import Conversation


def take_turn(
    conversation: Conversation,
    line: str,
    answer: Answer,
    pieces: Generator[tuple[bool, str]],
    *,
    inside: bool = False,
) -> tuple[str, bool]:
    """Show an answer, thinking dimmed; Ctrl-C stops it and keeps what has been said.

    Args:
        conversation: gets both messages, unless Ctrl-C comes before anything is said.
        line: the user's message.
        answer: filled in while `pieces` runs.
        pieces: whether a piece is known to be thinking, and its text; closed at the end.
        inside: the prompt has opened the tag of thinking already.

    Returns:
        The answer without its thinking, and whether it is complete.

    Raises:
        KeyboardInterrupt: a second Ctrl-C.
        Exception: what `pieces` raises; the conversation is as before.
    """
    is_whole = False
    try:
        _show(pieces, ThinkingSplitter(inside=inside))
        is_whole = True
    except KeyboardInterrupt:  # at any point: only the contents of `answer` are certain
        pass
    terminal.end_line(was_cut=not is_whole)
    said = spoken(answer.text, inside=inside, is_whole=is_whole)
    if said or is_whole:
        conversation.keep(line, said)
    return said, is_whole


def _show(pieces: Generator[tuple[bool, str]], splitter: ThinkingSplitter) -> None:
    with closing(pieces):
        for is_marked, piece in pieces:
            for thinking, text in [(True, piece)] if is_marked else splitter.feed(piece):
                terminal.show(text, dim=thinking)
    for thinking, text in splitter.finish():
        terminal.show(text, dim=thinking)
