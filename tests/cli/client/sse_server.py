"""A server that streams without a model: what a load generator is tested and timed against.

`python -m tests.cli.client.sse_server PORT` serves until it is killed.
"""

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

Behaviour = Callable[[str, str, dict[str, Any]], tuple[int, list[bytes]]]
"""From method, path and body to a status and the pieces to send."""

SECRET = "sesame"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def token(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    fields = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "model": "toy"}
    return event({**fields, "created": 1_700_000_000, "choices": [choice]})


def usage(prompt: int, completion: int, cached: int = 0) -> bytes:
    details = {"cached_tokens": cached}
    counted = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": {**counted, "prompt_tokens_details": details}})


DONE = b"data: [DONE]\n\n"


def completions(method: str, path: str, body: dict[str, Any]) -> tuple[int, list[bytes]]:
    """An event a token, then usage, then the end; a model named "toy"."""
    if path == "/v1/models":
        return 200, [json.dumps({"data": [{"id": "toy"}]}).encode()]
    count = body["max_tokens"]
    tokens = [token(f" {i}") for i in range(count - 1)] + [token("end", "length")]
    return 200, [*tokens, usage(len(body["prompt"]), count), DONE]


class Server:
    """Answers each request with pieces of a body, a chunk each, `delay_s` between them."""

    def __init__(self, behaviour: Behaviour, delay_s: float = 0.0, api_key: str | None = None):
        self.behaviour = behaviour
        self.delay_s = delay_s
        self.api_key = api_key
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split(maxsplit=2)
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:-2])
            content = await reader.readexactly(int(headers.get("content-length", 0)))
            body = json.loads(content or "{}")
            self.requests.append(body)
            status, pieces = self.behaviour(method, path, body)
            if self.api_key and headers.get("authorization") != f"bearer {self.api_key}":
                status, pieces = 401, [b'{"error":{"message":"no key"}}']
            is_chunked = "HTTP/1.0" not in head
            chunked = b"Transfer-Encoding: chunked\r\n" * is_chunked
            writer.write(b"HTTP/1.1 %d X\r\n%s\r\n" % (status, chunked))
            for piece in pieces:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
                await writer.drain()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
            writer.write(b"0\r\n\r\n" * is_chunked)
        writer.close()

    async def serve(self, port: int, started: Callable[[int], None]) -> None:
        server = await asyncio.start_server(self.answer, "127.0.0.1", port, backlog=1024)
        started(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()


@contextlib.contextmanager
def serving(behaviour: Behaviour = completions, **options: Any) -> Iterator[Server]:
    """A server in a thread of its own; its `url` is set."""
    server, ready = Server(behaviour, **options), threading.Event()
    stop: list[Callable[[], object]] = []

    async def run() -> None:
        task = asyncio.ensure_future(server.serve(0, started))
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(task.cancel))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def started(port: int) -> None:
        server.url = f"http://127.0.0.1:{port}"
        ready.set()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        stop[0]()
        thread.join(10)


if __name__ == "__main__":
    asyncio.run(Server(completions).serve(int(sys.argv[1]), print))
