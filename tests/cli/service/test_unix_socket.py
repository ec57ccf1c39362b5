"""A service at a Unix domain socket: its file comes, is replaced if left over, and goes."""

import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from jaxinfer.cli.service.unix_socket import listen_at
from tests.cli.service.running_service import OPTIONS


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "http")


def test_the_file_goes_with_the_service(path):
    with listen_at(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        listener.accept()[0].close()
    assert not os.path.exists(path)


def test_a_file_that_was_left_over_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(path)
    with listen_at(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_what_is_in_use_is_one_line_and_stays(path, tmp_path):
    with listen_at(path):
        with pytest.raises(ValueError, match=f"can't listen at {path}: Address already in use"):
            listen_at(path).__enter__()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ValueError, match="Address already in use"):
        listen_at(str(file)).__enter__()
    assert file.read_text() == "mine"
    with pytest.raises(ValueError, match="No such file"):
        listen_at(str(tmp_path / "none" / "x")).__enter__()
    with pytest.raises(ValueError, match="too long"):
        listen_at(str(tmp_path / ("x" * 200))).__enter__()


MIDDLEWARE = """
class Marked:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def mark(message):
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-marked", b"yes"))
            await send(message)

        await self.app(scope, receive, mark)


async def counted(request, go_on):
    answer = await go_on(request)
    answer.headers["x-counted"] = "1"
    return answer
"""


@pytest.mark.slow
def test_front_ends_answer_at_a_unix_socket_through_the_operators_middleware(path, tmp_path):
    (tmp_path / "own_middleware.py").write_text(MIDDLEWARE)
    flags = ["--uds", path, "--api-server-count", "2", "--access-log", "--quiet"]
    flags += ["--middleware", "own_middleware.Marked", "--middleware", "own_middleware.counted"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxinfer.serve", *OPTIONS, *flags],
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        body = {"prompt": "Once upon", "max_tokens": 3}
        wait_for_listener(path, process)
        answers = [ask(path, body) for _ in range(3)]
        assert {answer.status_code for answer in answers} == {200}
        for answer in answers:
            assert (answer.headers["x-marked"], answer.headers["x-counted"]) == ("yes", "1")
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.count('"path": "/v1/completions"') == 3, said
    assert not os.path.exists(path)


def wait_for_listener(path, process):
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask(path, body):
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=60) as client:
        return client.post("http://any/v1/completions", json=body)
