"""A turn of a chat is shown with its thinking dimmed, and kept as far as it was said."""

import pytest

from jaxinfer.cli import terminal
from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.turn import take_turn
from jaxinfer.cli.conversation import Conversation


def _stream(answer, pieces, closed):
    try:
        for is_marked, piece in pieces:
            if piece is KeyboardInterrupt:
                raise KeyboardInterrupt
            if not is_marked:
                answer.text += piece
            yield is_marked, piece
    finally:
        closed.append(True)


@pytest.fixture
def shown(monkeypatch):
    pieces = []
    monkeypatch.setattr(terminal, "show", lambda text, *, dim: pieces.append((text, dim)))
    return pieces


def _take(pieces):
    conversation, answer, closed = Conversation(), Answer(), []
    result = take_turn(conversation, "Hi", answer, _stream(answer, pieces, closed))
    assert closed
    return result, [message["content"] for message in conversation.turns]


def test_thinking_is_dimmed_and_not_kept(shown):
    pieces = [(True, "marked"), (False, "<think>hm</th"), (False, "ink>Hello"), (False, " there")]
    assert _take(pieces) == (("Hello there", True), ["Hi", "Hello there"])
    assert shown[0] == ("marked", True)
    assert "".join(text for text, dim in shown if dim) == "markedhm"
    assert "".join(text for text, dim in shown if not dim) == "Hello there"


def test_what_was_said_before_ctrl_c_is_kept(shown):
    pieces = [(False, "Hel"), (False, KeyboardInterrupt)]
    assert _take(pieces) == (("Hel", False), ["Hi", "Hel"])


def test_a_message_is_forgotten_when_nothing_was_said(shown):
    assert _take([(False, KeyboardInterrupt)]) == (("", False), [])
