"""Streams an answer of an OpenAI server as text, with the statistics of its request."""

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from jaxinfer.cli.answers.answer import Answer
from jaxinfer.cli.answers.statistics import RunStatistics
from jaxinfer.cli.client.server import Target, error_message

Piece = tuple[bool, str]
"""A piece of an answer: True if the server marks it as thinking, and its text."""

_MOST_ERROR_BYTES = 65_536


def stream_from_server(
    target: Target, path: str, body: Mapping[str, Any], answer: Answer
) -> Generator[Piece]:
    """Yield an answer piece by piece and fill in `answer`; closing the iterator aborts the request.

    Args:
        target: the server.
        path: "/v1/completions" or "/v1/chat/completions".
        body: the request's fields, without the fields for streaming.
        answer: an empty one; thinking that the server marks is left out of its text.

    Raises:
        ValueError: the server refuses the request, fails, or goes away.
    """
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    start, first, usage = time.perf_counter(), None, {}
    pieces = _events(target, path, {**body, **streaming})
    try:
        with closing(pieces):
            for event in pieces:
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
        answer.statistics = RunStatistics(
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            generation_tokens=usage.get("completion_tokens", 0),
            finish_reason=answer.finish_reason,
            first_token_s=(first or now) - start,
            first_compile_s=0.0,
            total_s=now - start,
            num_compilations=0,
            compile_s=0.0,
            peak_memory_bytes=0,
        )


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


def _events(target: Target, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    """The JSON of each server-sent event, up to the last."""
    headers = {**target.headers, "Content-Type": "application/json"}
    connection = target.connect()
    try:
        connection.request("POST", target.path + path, json.dumps(body), headers)
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
        raise ValueError(f"can't reach {target.url}{path}: {error}") from None
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
