"""Bytes pass both ways; losing the other side is reported and closes nothing here."""

import socket
import threading

import pytest

from jaxinfer.serving.processes.forwarder import Forwarder


@pytest.fixture
def link():
    """A listening coordinator, a client at the forwarder, and the losses that were reported."""
    lost, losses = threading.Event(), []

    def on_loss(ending):
        losses.append(ending)
        lost.set()

    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        forwarder = Forwarder(*coordinator.getsockname(), on_loss)
        host, port = forwarder.address.split(":")
        with socket.create_connection((host, int(port)), 5.0) as client:
            served, _ = coordinator.accept()
            with served:
                yield forwarder, client, served, lost, losses
        forwarder.close()
        for kept in forwarder._kept:
            kept.close()


def test_bytes_pass_both_ways(link):
    _, client, served, _, _ = link
    client.sendall(b"question")
    assert served.recv(100) == b"question"
    served.sendall(b"answer")
    assert client.recv(100) == b"answer"


def test_a_coordinator_that_is_lost_is_reported_and_the_client_stays(link):
    _, client, served, lost, losses = link
    served.close()
    assert lost.wait(60.0)
    assert losses == [False]
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(1)


def test_a_client_that_ends_is_no_loss(link):
    _, client, served, lost, _ = link
    client.shutdown(socket.SHUT_WR)
    assert served.recv(1) == b""
    served.close()
    assert client.recv(1) == b""
    assert not lost.is_set()


def test_a_loss_at_the_end_is_told_apart(link):
    forwarder, _, served, lost, losses = link
    forwarder.close()
    served.close()
    assert lost.wait(60.0)
    assert losses == [True]
