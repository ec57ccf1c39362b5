"""`jaxinfer chat --url`: each message is answered by a running OpenAI server."""

from typing import Any

from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.turn import take_turn
from jaxinfer.cli.client.answers import stream_from_server
from jaxinfer.cli.client.server import Target
from jaxinfer.cli.conversation import Conversation
from jaxinfer.cli.terminal import note


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
    answer = Answer()
    pieces = stream_from_server(target, "/v1/chat/completions", body, answer)
    said, is_whole = take_turn(conversation, line, answer, pieces)
    if not is_whole:
        kept = "what was said is kept" if said else "nothing was said: your message is forgotten"
        note(f"(stopped; {kept}; Ctrl-D leaves)")
    elif not quiet and answer.statistics is not None:
        note(answer.statistics.line())
