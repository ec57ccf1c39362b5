"""The access log has a line for each request, and nothing of what was asked."""

import asyncio
import contextlib
import io
import json

import pytest

from jaxinfer.server.telemetry.access_log import AccessLog


async def echo(scope, receive, send):
    """Answers in two pieces; "/raise" raises, "/late" does so after the first piece."""
    message = await receive()
    if scope["path"] == "/raise":
        raise RuntimeError("a bug")
    if message["type"] == "http.disconnect":
        return
    status = 404 if scope["path"] == "/nowhere" else 200
    await send({"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"one", "more_body": True})
    if scope["path"] == "/late":
        await asyncio.sleep(0)
        raise asyncio.CancelledError
    await send({"type": "http.response.body", "body": b"two!"})


def ask(path="/v1/completions", *, headers=(), body=b"a secret prompt", gone=False, app=echo):
    """The log's lines, what was sent to the client, and the scope."""
    out, sent = io.StringIO(), []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"key=secret",
        "headers": [(b"authorization", b"Bearer secret"), *headers],
        "client": ("10.0.0.7", 4321),
    }

    async def receive():
        return {"type": "http.disconnect" if gone else "http.request", "body": body}

    async def send(message):
        sent.append(message)

    with contextlib.suppress(RuntimeError, asyncio.CancelledError):
        asyncio.run(AccessLog(app, out)(scope, receive, send))
    return [json.loads(line) for line in out.getvalue().splitlines()], sent, scope


def test_a_line_says_who_asked_for_what_and_how_it_ended():
    ((line,), sent, _) = ask()
    assert line["method"] == "POST"
    assert line["path"] == "/v1/completions"
    assert line["status"] == 200
    assert line["client"] == "10.0.0.7"
    assert line["response_bytes"] == 7
    assert 0 <= line["first_byte_s"] <= line["duration_s"] < 5
    assert line["time"].endswith("+00:00")
    assert "secret" not in json.dumps(line)
    assert [message.get("body") for message in sent] == [None, b"one", b"two!"]


def test_a_clients_id_is_echoed_and_logged():
    ((line,), sent, scope) = ask(headers=[(b"X-Request-Id", b"mine")])
    assert line["request_id"] == scope["state"]["request_id"] == "mine"
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", b"mine")]


def test_an_id_of_the_application_wins():
    async def named(scope, receive, send):
        headers = [(b"X-Request-Id", b"from the body")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    ((line,), sent, _) = ask(headers=[(b"x-request-id", b"mine")], app=named)
    assert line["request_id"] == "from the body"
    assert sent[0]["headers"] == [(b"X-Request-Id", b"from the body")]


@pytest.mark.parametrize("value", [b"", b"  ", b"a\x1b[2J", b"a\r\nb: c", "ü".encode()])
def test_an_id_that_could_deceive_a_log_is_replaced(value):
    lines = [ask(headers=[(b"x-request-id", value)])[0][0] for _ in range(2)]
    first, second = (line["request_id"] for line in lines)
    assert len(first) == len(second) == 32
    assert first != second


def test_long_ids_and_paths_are_cut():
    ((line,), _, _) = ask("/" + "x" * 5000, headers=[(b"x-request-id", b"y" * 5000)])
    assert len(line["request_id"]) == 128
    assert len(line["path"]) == 256


def test_an_id_that_is_cut_at_a_blank_is_no_bad_header():
    ((line,), sent, _) = ask(headers=[(b"x-request-id", b"y" * 127 + b" z")])
    assert sent[0]["headers"][-1] == (b"x-request-id", b"y" * 127)
    assert line["request_id"] == "y" * 127


@pytest.mark.parametrize(
    ("path", "gone", "status"),
    [("/raise", False, 500), ("/x", True, 499), ("/nowhere", False, 404)],
)
def test_every_end_has_a_status(path, gone, status):
    ((line,), _, _) = ask(path, gone=gone)
    assert line["status"] == status


def test_an_answer_that_was_cut_off_is_no_success():
    ((line,), _, _) = ask("/late")
    assert line["status"] == 500
    assert line["response_bytes"] == 3


def test_probes_are_logged_only_when_they_fail():
    async def unwell(scope, receive, send):
        await send({"type": "http.response.start", "status": 503})
        await send({"type": "http.response.body"})

    assert ask("/health")[0] == []
    assert ask("/metrics")[0] == []
    ((line,), _, _) = ask("/health", app=unwell)
    assert line["status"] == 503


def test_what_is_no_http_request_passes():
    passed = []

    async def lifespan(scope, receive, send):
        passed.append(scope["type"])

    asyncio.run(AccessLog(lifespan, io.StringIO())({"type": "lifespan"}, None, None))
    assert passed == ["lifespan"]
