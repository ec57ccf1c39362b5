"""Connects the processes: process 0 listens and leaves its address with the coordinator."""

import hmac
import json
import secrets
import socket
import time

from jaxinfer.errors import DistributedError
from jaxinfer.serving.processes import coordination
from jaxinfer.serving.processes.channel import Channel, encode
from jaxinfer.serving.processes.group import PEER_TIMEOUT_S, Peer, ProcessGroup, own_name
from jaxinfer.serving.processes.start import ENDED_KEY, START_TIMEOUT_S

_KEY = "jaxinfer/leader"
_POLL_S = 0.1
_HELLO_TIMEOUT_S = 5.0
_MAX_HELLO_BYTES = 4096


def meet(timeout: float = START_TIMEOUT_S) -> ProcessGroup | None:
    """Connect the processes for one engine; None if JAX knows of no other process.

    Only who can read from the coordinator can join: it holds a random word to be shown.

    Args:
        timeout: seconds to wait for the others.

    Raises:
        DistributedError: another process has ended or did not come in time; names it.
    """
    if not coordination.is_started():
        return None
    deadline = time.monotonic() + timeout
    process_id = coordination.process_id()
    peers = _gather(deadline) if process_id == 0 else [_join(process_id, deadline)]
    return ProcessGroup(process_id, coordination.num_processes(), peers)


def _gather(deadline: float) -> list[Peer]:
    """Process 0: wait for all others."""
    word = secrets.token_hex(16)
    missing = set(range(1, coordination.num_processes()))
    peers: dict[int, Peer] = {}
    host = coordination.coordinator_host()
    with _listen(host) as listener:
        where = {"host": host, "port": listener.getsockname()[1], "word": word}
        coordination.put(_KEY, json.dumps(where).encode())
        listener.settimeout(_POLL_S)
        while missing:
            _check_time(deadline, sorted(missing))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            peer = _greet(connection, word)
            if peer is not None and peer.process_id in missing:
                missing.remove(peer.process_id)
                peers[peer.process_id] = peer
    coordination.delete(_KEY)  # before processes may meet for the next engine
    name = own_name(0)
    for peer in peers.values():
        peer.channel.send(encode({"name": name}))
    return [peers[i] for i in sorted(peers)]


def _listen(host: str) -> socket.socket:
    """A listening socket: for this machine only where the coordinator is, else for all."""
    if host in ("localhost", "127.0.0.1", "::1"):
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        return socket.create_server((host, 0), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _greet(connection: socket.socket, word: str) -> Peer | None:
    """The process at the other end, if it knows the word."""
    channel = Channel(connection, _HELLO_TIMEOUT_S)
    try:
        hello = channel.receive(_MAX_HELLO_BYTES)
        if not hmac.compare_digest(str(hello["word"]), word):
            raise ValueError("wrong word")
        peer = Peer(int(hello["process_id"]), str(hello["name"]), channel)
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        channel.close()
        return None
    connection.settimeout(PEER_TIMEOUT_S)
    return peer


def _join(process_id: int, deadline: float) -> Peer:
    """Any other process: connect to process 0."""
    while True:
        _check_time(deadline, [0])
        stored = coordination.get(_KEY)
        peer = None if stored is None else _knock(json.loads(stored), process_id, deadline)
        if peer is not None:
            return peer
        time.sleep(_POLL_S)


def _knock(where: dict[str, object], process_id: int, deadline: float) -> Peer | None:
    try:
        connection = socket.create_connection((str(where["host"]), int(str(where["port"]))), 5.0)
    except OSError:  # an address of an earlier meeting, or not reachable: time will tell
        return None
    channel = Channel(connection, max(deadline - time.monotonic(), 1.0))
    hello = {"word": where["word"], "process_id": process_id, "name": own_name(process_id)}
    try:
        channel.send(encode(hello))
        name = str(channel.receive()["name"])
    except (OSError, EOFError, ValueError):
        channel.close()
        return None
    connection.settimeout(PEER_TIMEOUT_S)
    return Peer(0, name, channel)


def _check_time(deadline: float, missing: list[int]) -> None:
    for process_id in missing:
        if coordination.get(f"{ENDED_KEY}{process_id}") is not None:
            raise DistributedError(f"process {process_id} ended before it had made its engine")
    if time.monotonic() > deadline:
        names = ", ".join(map(str, missing))
        raise DistributedError(
            f"process {names} did not make its engine in time; every process must make the same "
            "engines in the same order, and reach process 0 over TCP"
        )
