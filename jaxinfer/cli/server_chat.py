"""`jaxinfer chat --url`: each message is answered by a running OpenAI server."""

from contextlib import closing
from typing import Any

from jaxinfer.cli.answers import Answer
from jaxinfer.cli.conversation import Conversation
from jaxinfer.cli.server import Target
from jaxinfer.cli.server_answers import stream_from_server
from jaxinfer.cli.terminal import end_line, note, show
from jaxinfer.cli.thinking import ThinkingSplitter, spoken


def answer_from_server(
    target: Target, model: str, conversation: Conversation, line: str, *, quiet: bool
) -> None:
    """Answer `line`; Ctrl-C stops the answer and keeps what has been said.

    Args:
        target: the server.
        model: its name there.
        conversation: gets both messages.
        line: what the user asks.
        quiet: no statistics.

    Raises:
        ValueError: the server refuses or goes away; the conversation is as before.
        KeyboardInterrupt: a second Ctrl-C.
    """
    body: dict[str, Any] = {"model": model, "messages": conversation.messages(line)}
    body |= conversation.sampling
    if conversation.thinking is not None:
        body["chat_template_kwargs"] = {"enable_thinking": conversation.thinking}
    answer, is_whole = Answer(), False
    try:
        _speak(target, body, answer)
        is_whole = True
    except KeyboardInterrupt:
        pass
    end_line(was_cut=not is_whole)
    said = spoken(answer.text, inside=False, is_whole=is_whole)
    if said or is_whole:
        conversation.keep(line, said)
    if not is_whole:
        kept = "what was said is kept" if said else "nothing was said: your message is forgotten"
        note(f"(stopped; {kept}; Ctrl-D leaves)")
    elif not quiet and answer.statistics is not None:
        note(answer.statistics.line())


def _speak(target: Target, body: dict[str, Any], answer: Answer) -> None:
    """Stream an answer to the terminal and into `answer`, thinking dimmed."""
    splitter = ThinkingSplitter()
    with closing(stream_from_server(target, "/v1/chat/completions", body, answer)) as pieces:
        for is_marked, piece in pieces:
            if is_marked:
                show(piece, dim=True)
                continue
            for thinking, text in splitter.feed(piece):
                show(text, dim=thinking)
    for thinking, text in splitter.finish():
        show(text, dim=thinking)
