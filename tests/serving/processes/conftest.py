"""What the tests of several processes share: processes that are threads of one."""

import socket

import pytest

from jaxinfer.serving.processes.channel import Channel
from jaxinfer.serving.processes.group import Peer, ProcessGroup


@pytest.fixture
def groups():
    """Process 0 of three, and the two others."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peers, others = [], []
        for i in (1, 2):
            follower = socket.create_connection(listener.getsockname())
            leader, _ = listener.accept()
            peers.append(Peer(i, f"process {i}", Channel(leader, 5.0)))
            others.append(ProcessGroup(i, 3, [Peer(0, "process 0", Channel(follower, 5.0))]))
    made = [ProcessGroup(0, 3, peers), *others]
    yield made
    made[0].close()  # the others hear of it before they part
    for group in made[1:]:
        while not group.is_ending:
            group.next_message(timeout=1.0)
        group.close()
