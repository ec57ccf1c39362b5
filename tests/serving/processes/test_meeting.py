"""Only who knows the word from the coordinator may join."""

import socket

import pytest

from jaxinfer.errors import DistributedError
from jaxinfer.serving.processes import coordination, meeting
from jaxinfer.serving.processes.channel import Channel, encode


@pytest.fixture
def ends():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with client, served:
            yield client, served


@pytest.mark.parametrize(
    ("hello", "process_id"),
    [
        ({"word": "right", "process_id": 3, "name": "process 3"}, 3),
        ({"word": "wrong", "process_id": 3, "name": "process 3"}, None),
        ({"process_id": 3}, None),
        ({"word": "right", "process_id": "x", "name": ""}, None),
    ],
)
def test_only_who_knows_the_word_joins(ends, hello, process_id):
    client, served = ends
    Channel(client, 5.0).send(encode(hello))
    peer = meeting._greet(served, "right")
    assert (None if peer is None else peer.process_id) == process_id


def test_one_process_alone_meets_nobody():
    assert meeting.meet() is None


@pytest.mark.parametrize(
    ("ended", "deadline", "error"),
    [(b"1", float("inf"), "process 2 ended before"), (None, 0.0, "process 2 did not make")],
)
def test_who_does_not_come_is_named(monkeypatch, ended, deadline, error):
    monkeypatch.setattr(coordination, "get", lambda key: ended)
    with pytest.raises(DistributedError, match=error):
        meeting._check_time(deadline, [2])
