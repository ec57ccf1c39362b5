"""Messages arrive whole and in order; what is no message is refused before memory is taken."""

import socket
import threading

import pytest

from jaxinfer.serving.processes.channel import Channel, encode


@pytest.fixture
def ends():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        yield left, right


@pytest.fixture
def channel(ends, monkeypatch):
    monkeypatch.setattr(ends[0].__class__, "setsockopt", lambda *_: None)  # no TCP here
    return Channel(ends[0], 0.5)


def test_messages_arrive_whole_and_in_order(ends, channel):
    messages = [{"kind": "step"}, {"text": "ü" * 100_000}, {"ids": list(range(1000))}]
    sender = threading.Thread(target=lambda: [ends[1].sendall(encode(m)) for m in messages])
    sender.start()
    assert [channel.receive() for _ in messages] == messages
    sender.join()


def test_the_end_is_seen_after_all_that_was_sent(ends, channel):
    ends[1].sendall(encode({"kind": "stop"}))
    ends[1].close()
    assert channel.receive() == {"kind": "stop"}
    with pytest.raises(EOFError):
        channel.receive()


def test_a_silent_peer_counts_as_lost(channel):
    with pytest.raises(TimeoutError):
        channel.receive()


def test_a_stranger_can_not_send_much(ends, channel):
    ends[1].sendall(encode({"word": "x" * 100}))
    with pytest.raises(ValueError, match="a message of 111 bytes"):
        channel.receive(100)


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", b"\x02\0\0\0[]", b"\x01\0\0\0{"])
def test_what_is_no_message_is_refused(ends, channel, sent):
    ends[1].sendall(sent)
    with pytest.raises(ValueError, match=r"message|Expecting"):
        channel.receive()
