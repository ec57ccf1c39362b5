"""A running OpenAI server as the model of a command."""

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

from jaxinfer.cli.answers.answer import Answer, Piece, RunTimes
from jaxinfer.cli.client.server import Target, error_message
from jaxinfer.cli.prompts import PromptLine

_MOST_AT_ONCE = 64
_MOST_ERROR_BYTES = 65_536


class ServedRequest(NamedTuple):
    """A request: the path and the JSON body. The server itself marks thinking."""

    path: str
    body: dict[str, Any]
    inside: bool = False


class ServedModel:
    """Answers prompts with a running server."""

    when_stopped = ""

    def __init__(self, target: Target, name: str) -> None:
        self._target = target
        self._name = name

    def request(
        self,
        prompt: str | Sequence[dict[str, str]],
        fields: Mapping[str, Any],
        thinking: bool | None = None,
    ) -> ServedRequest:
        """The request for a text or a conversation; the server checks the fields."""
        body = {"model": self._name, **fields}
        if isinstance(prompt, str):
            return ServedRequest("/v1/completions", {**body, "prompt": prompt})
        if thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
        return ServedRequest("/v1/chat/completions", {**body, "messages": prompt})

    def stream(self, request: ServedRequest, answer: Answer) -> Generator[Piece]:
        """Yield an answer piece by piece and fill in `answer`; closing it aborts the request.

        Thinking that the server marks is left out of the answer's text.

        Raises:
            ValueError: the server refuses the request, fails, or goes away.
        """
        start, first, usage = time.perf_counter(), None, {}
        events = _events(self._target, request)
        try:
            with closing(events):
                for event in events:
                    usage = event.get("usage") or usage
                    for thinking, text in _texts(event, answer):
                        first = first or time.perf_counter()
                        answer.text += "" if thinking else text
                        yield thinking, text
        finally:
            now = time.perf_counter()
            details = usage.get("prompt_tokens_details") or {}
            answer.prompt_tokens = usage.get("prompt_tokens", 0)
            answer.cached_tokens = details.get("cached_tokens") or 0
            answer.generation_tokens = usage.get("completion_tokens", 0)
            answer.times = RunTimes(first_token_s=(first or now) - start, total_s=now - start)

    def answer_all(
        self, lines: Sequence[PromptLine], requests: Sequence[ServedRequest]
    ) -> Iterator[Answer]:
        """The answer to each prompt, in order, up to 64 at a time; one that failed says why."""

        def answer_to(request: ServedRequest) -> Answer:
            answer = Answer()
            try:
                for _ in self.stream(request, answer):
                    pass
            except ValueError as error:
                answer.finish_reason, answer.error = "error", str(error)
            return answer

        pool = ThreadPoolExecutor(_MOST_AT_ONCE)
        try:
            for future in [pool.submit(answer_to, request) for request in requests]:
                yield future.result()
        finally:  # Ctrl-C waits for no answer
            pool.shutdown(wait=False, cancel_futures=True)

    def watch(self) -> None:
        """None: a server's times are in its metrics."""

    def cut_reason(self, request: ServedRequest, answer: Answer, *, setting: str) -> None:
        """None: the statistics say that an answer ended by its length."""


def _texts(event: Mapping[str, Any], answer: Answer) -> Iterator[Piece]:
    """An event's addition to the first choice."""
    for choice in event.get("choices") or ():
        if choice.get("index", 0) != 0:
            continue
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        delta = choice.get("delta") or {}
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            yield True, thought
        if text := choice.get("text") or delta.get("content"):
            yield False, text


def _events(target: Target, request: ServedRequest) -> Generator[dict[str, Any]]:
    """The JSON of each server-sent event, up to the last."""
    headers = {**target.headers, "Content-Type": "application/json"}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    connection = target.connect()
    try:
        body = json.dumps({**request.body, **streaming})
        connection.request("POST", target.path + request.path, body, headers)
        response = connection.getresponse()
        if response.status != 200:
            said = error_message(response.read(_MOST_ERROR_BYTES))
            raise ValueError(f"{target.url} answers HTTP {response.status}: {said}")
        for line in response:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield _event(target, data)
    except (OSError, http.client.HTTPException) as error:
        raise ValueError(f"can't reach {target.url}{request.path}: {error}") from None
    finally:
        connection.close()
    raise ValueError(f"{target.url} closed the connection before the answer's end")


def _event(target: Target, data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ValueError(f"{target.url} sent an event that is no JSON object")
    if "error" in event:
        raise ValueError(f"the request failed: {error_message(data)}")
    return event
