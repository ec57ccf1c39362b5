"""A client that goes frees its slots and blocks, whatever its request does."""

import contextlib
import json
import socket
import struct
import time

import pytest

from tests.server.openai.fake_engine import SlowEngine
from tests.server.openai.http_server import serving

pytestmark = pytest.mark.slow("alone")

LONG = {"max_tokens": 250, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 220, "ignore_eos": True}


@pytest.fixture(scope="module")
def port(client):
    # Nothing is left to compile, which a step could not be interrupted in.
    for prompt in ([1, 2, 3], [[i, 2, 3] for i in range(20)], [[i] * 240 for i in range(4)]):
        body = {"prompt": prompt, "n": 2 if len(prompt) == 20 else 1, "max_tokens": 12}
        client.post("/v1/completions", {**body, "ignore_eos": True})
    with serving(client.app) as port:
        yield port


def send(port, path, body, *, missing=0):
    """A connection on which all but the last `missing` bytes of a request were sent."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head.encode() + data[: len(data) - missing])
    return connection


def reset(connection):
    """Close as a killed process does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def num_aborted(engine):
    driver = engine._handle.driver
    return driver.call(lambda: engine._handle.loaded.engine.counts().finished["abort"])


def num_open(engine):
    driver = engine._handle.driver
    return driver.call(lambda: len(driver._driven))


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.005)


@contextlib.contextmanager
def all_aborted(engine, count):
    """Every one of `count` completions is ended by what happens inside."""
    before = num_aborted(engine)
    yield
    wait_for(lambda: num_open(engine) == 0)
    assert num_aborted(engine) - before == count


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [1, 2, 3], **LONG}),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
    ],
)
def test_a_running_request_ends_with_its_client(port, engine, path, body, stream, leave):
    connection = send(port, path, {**body, "stream": stream})
    wait_for(lambda: num_open(engine) == 1)
    if stream:
        assert connection.recv(10)
    with all_aborted(engine, 1):
        leave(connection)


@pytest.mark.parametrize("stream", [False, True])
def test_waiting_requests_and_all_completions_end_with_their_client(port, engine, stream):
    body = {"prompt": [[i, 2, 3] for i in range(20)], "n": 2, **LONG, "stream": stream}
    connection = send(port, "/v1/completions", body)  # 40 for 4 slots
    wait_for(lambda: num_open(engine) == 20)
    with all_aborted(engine, 40):
        connection.close()


def test_requests_end_while_their_prompts_run(port, engine):
    body = {"prompt": [[i] * 240 for i in range(20, 40)], "max_tokens": 5, "stream": True}
    connection = send(port, "/v1/completions", body)
    wait_for(lambda: num_open(engine) == 20)
    with all_aborted(engine, 20):
        connection.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": [[i] * 240 for i in range(40, 60)]}),
        ("/v1/decisions", {"prompt": [[i] * 240 for i in range(60, 80)], "labels": ["a", "b"]}),
        ("/rerank", {"query": "a fox", "documents": [f"{i} " * 90 for i in range(20)]}),
    ],
)
def test_prompts_whose_answer_nobody_reads_end_with_their_client(port, engine, path, body):
    connection = send(port, path, body)
    wait_for(lambda: num_open(engine) > 10)
    before = num_aborted(engine)
    connection.close()
    wait_for(lambda: num_open(engine) == 0)
    assert num_aborted(engine) > before


def test_half_a_request_starts_nothing(port, engine):
    before = num_aborted(engine)
    connection = send(port, "/v1/completions", {"prompt": [1], **LONG}, missing=1)
    time.sleep(0.05)
    connection.close()
    time.sleep(0.05)
    assert num_open(engine) == 0
    assert num_aborted(engine) == before


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/completions", {"prompt": "slow text"}), ("/v1/chat/completions", CHAT)],
)
def test_a_client_that_goes_while_its_text_is_read_starts_nothing(make_client, engine, path, body):
    slow = SlowEngine(engine)
    client = make_client(slow)
    with serving(client.app) as port:
        connection = send(port, path, body)
        time.sleep(0.2)
        connection.close()
        time.sleep(1.2)
        assert slow.num_requests == 0
        stays = send(port, path, {**body, "max_tokens": 1})
        assert stays.recv(65536).startswith(b"HTTP/1.1 200")
        stays.close()
    assert slow.num_requests == 1


def test_a_client_that_stays_is_not_bothered(port, engine):
    stays = send(port, "/v1/completions", {"prompt": [5, 6], "max_tokens": 40, "ignore_eos": True})
    goes = send(port, "/v1/completions", {"prompt": [5, 7], **LONG})
    wait_for(lambda: num_open(engine) == 2)
    goes.close()
    answer = b""
    while b'"usage"' not in answer:
        answer += stays.recv(65536)
    assert b'"completion_tokens":40' in answer
    stays.close()
    wait_for(lambda: num_open(engine) == 0)


def test_load_falls_back_to_nothing(port, client):
    connection = send(port, "/v1/completions", {"prompt": [1], **LONG})
    load = client.app.state.front
    wait_for(lambda: load.num_running == 1)
    connection.close()
    wait_for(lambda: load.num_running == 0)


def test_a_large_body_is_refused_without_being_read(port):
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall((head + f"Content-Length: {1 << 30}\r\n\r\n[").encode())
    answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()
    connection.close()


def test_a_client_that_reads_nothing_holds_nothing_up(make_client, engine):
    client = make_client(served_model_names=("m" * 40_000,))  # more than sockets buffer
    with serving(client.app) as port:
        body = {"prompt": [[i, 3] for i in range(8)], **LONG, "stream": True}
        connection = send(port, "/v1/completions", body)
        wait_for(lambda: num_open(engine) > 0)
        other = send(port, "/v1/completions", {"prompt": [1], "max_tokens": 2})
        assert other.recv(65536).startswith(b"HTTP/1.1 200")
        other.close()
        wait_for(lambda: num_open(engine) == 0)  # all was made
        assert client.app.state.front.num_running == 1  # and waits to be read
        connection.close()
        wait_for(lambda: client.app.state.front.num_running == 0)
