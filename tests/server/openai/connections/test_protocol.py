"""What one connection takes is bounded, in each turn, in memory and in time."""

import asyncio
import contextlib
import itertools
import socket
import threading
import time

import h11
import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.server.openai.connections.h11_connection import EVENTS_A_TURN, H11Connection
from jaxinfer.server.openai.connections.limits import ConnectionLimits
from jaxinfer.server.openai.connections.protocol import BYTES_A_TURN, Protocol
from jaxinfer.server.openai.disconnects import until_gone
from tests.server.openai.http_server import running

LOOPS = pytest.mark.parametrize("loop", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
MOST_READ_BYTES = 1 << 18  # at once, from a socket, by either loop
PATIENCE_S = 30.0


async def app(scope, receive, send):
    """Answers with the length of the body, or, without reading it, with 401, or with a lot."""
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    length = 0
    more = scope["path"] == "/read"
    while more:
        message = await receive()
        length += len(message.get("body", b""))
        more = message.get("more_body", False)
    answer = b"x" * 20_000_000 if scope["path"] == "/much" else str(length).encode()
    status = 401 if scope["path"] == "/locked" else 200
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


@contextlib.contextmanager
def connected(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(PATIENCE_S)
        yield client


def request(path, *headers, body=b""):
    lines = [f"POST {path} HTTP/1.1", "host: test", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(path, body):
    return request(path, "transfer-encoding: chunked", body=body)


def whole_answer(client):
    """All that comes until the server closes."""
    received = b""
    while data := client.recv(1 << 16):
        received += data
    return received


def ask(port, *data):
    with connected(port) as client:
        for each in data:
            client.sendall(each)
        return whole_answer(client)


def eventually(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def events_a_turn(monkeypatch):
    """The number of events that were handled in each turn of a loop that notes its turns."""
    turns = [0]
    plain = H11Connection.next_event

    def counted(self):
        event = plain(self)
        turns[-1] += event not in (h11.NEED_DATA, h11.PAUSED)
        return event

    monkeypatch.setattr(H11Connection, "next_event", counted)
    return turns


@pytest.fixture
def noting_turns(events_a_turn, monkeypatch):
    """An app that notes the turns of its loop, until all is over.

    uvloop reads sockets behind a turn's callbacks, and other connections' between the two: what a
    connection handles in either counts by itself.
    """
    plain = Protocol.data_received
    is_reading = False

    def noted(self, data):
        nonlocal is_reading
        if not is_reading:
            events_a_turn.append(0)
        is_reading = True
        plain(self, data)

    monkeypatch.setattr(Protocol, "data_received", noted)

    async def noting(scope, receive, send):
        loop = asyncio.get_running_loop()

        def note():
            nonlocal is_reading
            events_a_turn.append(0)
            is_reading = False
            loop.call_soon(note)

        if scope["type"] == "lifespan":
            note()
        await app(scope, receive, send)

    return noting


@LOOPS
def test_a_turn_handles_few_of_a_connections_chunks(loop, noting_turns, events_a_turn):
    chunks = b"1\r\nx\r\n" * 20_000
    with running(noting_turns, loop_factory=loop) as (port, _):
        answer = ask(
            port,
            request("/read", "connection: close", "transfer-encoding: chunked"),
            chunks,
            b"0\r\n\r\n",
        )
    assert answer.endswith(b"\r\n\r\n20000")
    assert max(events_a_turn) <= EVENTS_A_TURN
    assert sum(events_a_turn) >= 20_000


@LOOPS
def test_others_are_answered_while_a_body_of_tiny_chunks_never_ends(loop):
    limits = ConnectionLimits(idle_seconds=0.1)
    with running(app, limits, loop_factory=loop) as (port, _), connected(port) as client:
        over = threading.Event()

        def flood():
            with contextlib.suppress(OSError):
                client.sendall(chunked("/read", b""))
                while not over.is_set():
                    client.sendall(b"1\r\nx\r\n" * 10_000)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            for _ in range(5):
                assert b" 200 " in ask(port, request("/", "connection: close"))
        finally:
            over.set()
            client.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)


@LOOPS
@pytest.mark.parametrize(
    "head",
    [chunked("/locked", b""), request("/locked", "content-length: 1000000000")],
    ids=["chunks", "length"],
)
def test_an_answer_without_the_body_read_is_the_last(loop, head):
    with running(app, loop_factory=loop) as (port, server), connected(port) as client:
        client.sendall(head)
        answer = b""
        with contextlib.suppress(OSError):
            for _ in itertools.count():
                client.sendall(b"1\r\nx\r\n" * 1000)
                if not answer.endswith(b"0"):
                    answer += client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nconnection: close\r\n" in answer
        eventually(lambda: not server.server_state.connections)


@LOOPS
def test_a_refusal_reaches_a_client_that_sends_all_of_a_large_body_first(loop):
    body = b"x" * 3_000_000
    with running(app, loop_factory=loop) as (port, _):
        head = request("/locked", f"content-length: {len(body)}")
        assert ask(port, head, body).startswith(b"HTTP/1.1 401 ")


def test_a_refusal_keeps_a_connection_whose_body_has_come():
    limits = ConnectionLimits(idle_seconds=0.2)
    with running(app, limits) as (port, _):
        both = request("/locked", "content-length: 3", body=b"abc") + request("/")
        answer = ask(port, both)
    assert answer.count(b"HTTP/1.1 401 ") == answer.count(b"HTTP/1.1 200 ") == 1


@LOOPS
def test_reading_waits_while_a_complete_request_does(loop):
    held = []
    number = 400
    padded = request("/", f"a: {'a' * 8000}")

    async def noting(scope, receive, send):
        if scope["type"] == "http":
            for each in server.server_state.connections:
                held.append(len(each.conn.trailing_data[0]) + len(each._unparsed))
            gone = asyncio.ensure_future(until_gone(receive))  # as every handler does
            await asyncio.sleep(0.001)
            gone.cancel()
        await app(scope, receive, send)

    limits = ConnectionLimits(idle_seconds=0.2)
    with running(noting, limits, loop_factory=loop) as (port, server), connected(port) as client:
        sending = threading.Thread(target=client.sendall, args=(padded * number,))
        sending.start()
        answer = whole_answer(client)
        sending.join(PATIENCE_S)
    assert answer.count(b"HTTP/1.1 200 ") == len(held) == number
    assert max(held) <= MOST_READ_BYTES + BYTES_A_TURN + len(padded)


@LOOPS
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"GET / HTTP/1.1\r\nhost: te", b"408"),
        (request("/") + b"GET", b"408"),
    ],
    ids=["silence", "half a head", "half a second head"],
)
def test_a_head_has_its_time(loop, sent, status):
    limits = ConnectionLimits(head_seconds=0.2, idle_seconds=60.0)
    with running(app, limits, loop_factory=loop) as (port, server):
        answer = ask(port, sent)
        eventually(lambda: not server.server_state.connections)
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    assert last[:3] == (status or b"")


def test_a_head_that_comes_byte_by_byte_has_no_more_time():
    with (
        running(app, ConnectionLimits(head_seconds=0.3)) as (port, _),
        connected(port) as client,
        contextlib.suppress(OSError),
    ):
        client.sendall(b"GET / HTTP/1.1\r\na: ")
        for _ in range(int(PATIENCE_S / 0.05)):
            time.sleep(0.05)
            client.sendall(b"a")
        raise AssertionError("the head never ended")


@LOOPS
@pytest.mark.parametrize("ending", ["keep-alive", "close"])
def test_a_client_that_reads_nothing_is_left_in_the_end(loop, ending):
    limits = ConnectionLimits(stalled_seconds=0.3, idle_seconds=0.1)
    with running(app, limits, loop_factory=loop) as (port, server), connected(port) as client:
        client.sendall(request("/much", f"connection: {ending}"))
        eventually(lambda: server.server_state.connections)
        eventually(lambda: not server.server_state.connections)


def test_a_client_that_reads_slowly_gets_all():
    limits = ConnectionLimits(stalled_seconds=0.5, idle_seconds=0.1)
    with running(app, limits) as (port, _), connected(port) as client:
        client.sendall(request("/much"))
        received = 0
        while data := client.recv(1 << 20):
            received += len(data)
            time.sleep(0.05)
    assert received > 20_000_000


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/", "content-length: 5", "transfer-encoding: chunked", body=b"0\r\n\r\n"), 400),
        (request("/", "transfer-encoding: chunked", "content-length: 0", body=b"0\r\n\r\n"), 400),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (request("/", "content-length: 5", "content-length: 6"), 400),
        (request("/", *["a: b"] * 300), 431),
        (request("/", *["a: b"] * 300)[:-2], 431),
        (request("/", f"a: {'a' * (1 << 16)}"), 431),
        (request("/", f"a: {'a' * (1 << 18)}"), 431),
        (chunked("/read", b"1;" + b"a" * 50_000 + b"\r\nx\r\n0\r\n\r\n"), 400),
        (chunked("/read", b"0\r\n" + b"a: b\r\n" * 10_000 + b"\r\n"), 400),
        (chunked("/read", b"1\r\nx\r\nzz\r\n"), 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_not_http_is_refused_in_the_apis_form_and_closed(sent, status):
    with running(app, ConnectionLimits(idle_seconds=60.0, head_seconds=60.0)) as (port, _):
        answer = ask(port, sent)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.count(b"HTTP/1.1 " + str(status).encode()) == 1
    assert answer.lower().count(b"connection: close") == 1
    assert b'\r\n\r\n{"error":{"message":"' in answer


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                b"GET ",
                b"/",
                b" HTTP/1.1",
                b"\r\n",
                b"host: a",
                b"0",
                b"5",
                b"x",
                b"transfer-encoding: chunked",
                b"content-length: 5",
                b"\r\n\r\n",
            ]
        )
    ),
    st.integers(1, 40),
)
def test_any_bytes_in_any_pieces_are_events_or_an_error_of_the_client(words, size):
    data = b"".join(words)
    connection = H11Connection(1 << 10, 16)
    try:
        for start in range(0, len(data), size):
            connection.receive_data(data[start : start + size])
            connection.start_turn()
            events = 0
            while connection.next_event() not in (h11.NEED_DATA, h11.PAUSED):
                events += 1
            assert events <= EVENTS_A_TURN
    except h11.RemoteProtocolError:
        status, message = connection.refusal
        assert status >= 400
        assert message


def test_requests_that_want_another_protocol_are_answered_as_they_are():
    limits = ConnectionLimits(idle_seconds=0.2)
    with running(app, limits) as (port, _):
        upgrade = request("/", "connection: upgrade", "upgrade: websocket")
        assert ask(port, upgrade * 2).count(b"HTTP/1.1 200 ") == 2


def test_limits_are_checked():
    with pytest.raises(ValueError, match="head_seconds must be from"):
        ConnectionLimits(head_seconds=0.0)
    with pytest.raises(TypeError, match="max_headers must be an integer"):
        ConnectionLimits(max_headers="many")
    with pytest.raises(ValueError, match="'example' is neither an address"):
        ConnectionLimits(trusted_proxies=("10.0.0.0/8", "example"))
