"""Messages between an engine's process and its front ends: MessagePack, length first."""

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from jaxinfer.serving.engine.metrics import Counter, Gauge, Histogram, Metric
from jaxinfer.serving.pooling.task import HeadRows
from jaxinfer.serving.requests.token_group import RunFacts

_MAX_FRAME_BYTES = 1 << 28
_LENGTH_BYTES = 4


class Add(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Front end to engine: enqueue a prompt's completions, all or none.

    Attributes:
        number: this front end's number for the request.
        request: from `engine_message`; it makes `n` completions, and completion i samples with
            `seed + i`. Without "params" those of the request before apply.
    """

    number: int
    request: dict[str, Any]


class End(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Front end to engine: end completions without clients, by request's number and index."""

    completions: list[tuple[int, int]]


class Call(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Front end to engine: call a method and reply with its result."""

    number: int
    name: str
    arguments: list[Any] = []


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Engine to front end, the first message: the engine's description; see `EngineDescription`."""

    description: dict[str, Any]


class Scores(msgspec.Struct, frozen=True, array_like=True):
    """`TokenScores` as bytes in the machine's order.

    Attributes:
        shape: the leading dimensions ``...``.
        tokens: int32 ``[...]``.
        logprobs: float32 ``[...]``.
        ranks: int32 ``[...]``; empty if they were not computed.
        top_ids: int32 ``[..., k]``; empty if none were asked for.
        top_logprobs: float32 ``[..., k]``; empty if none were asked for.
    """

    shape: list[int]
    tokens: bytes
    logprobs: bytes
    ranks: bytes = b""
    top_ids: bytes = b""
    top_logprobs: bytes = b""


class StepScores(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of rows of one step that asked for the same number of likeliest tokens.

    Attributes:
        rows: indices in `Step.rows`, an item for each row of `scores`.
        counts: number of leading positions that are valid in each.
        scores: of shape ``[rows, positions]``.
    """

    rows: list[int]
    counts: list[int]
    scores: Scores


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """Scores of a chunk of a prompt.

    Attributes:
        start: the position of the chunk's first token, which predicts the first that is scored.
        scores: of shape ``[count]``.
    """

    start: int
    scores: Scores


class News(msgspec.Struct, frozen=True, array_like=True):
    """A completion's additions besides tokens; see `TokenOutput`.

    Attributes:
        facts: times in it are on the clock of `Step.time`.
        finish_reason: None while it runs.
        stop_reason: the stop token that ended it.
        prompt_scores: one for each chunk.
        embedding: float32 ``[E]`` in the machine's order; empty if none was asked for.
    """

    facts: RunFacts
    finish_reason: str | None = None
    stop_reason: int | None = None
    prompt_scores: Sequence[PromptScores] = ()
    error: str | None = None
    embedding: bytes = b""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A completion's additions; a step has hundreds.

    Attributes:
        news: everything else but log-probabilities; None if unchanged since the row before.
    """

    number: int
    index: int
    token_ids: Sequence[int]
    news: News | None = None


class Step(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Engine to front end: all results of a step for its requests.

    Attributes:
        time: seconds on the clock that both share (`time.monotonic`).
        scores: log-probabilities of these rows, gathered into a few arrays. Several steps of one
            row are in separate items, in order.
    """

    time: float
    rows: list[Row]
    scores: list[StepScores] = []


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Engine to front end: a request that was not enqueued, or that the engine could not finish.

    Attributes:
        kind: the exception's name; one that `errors_by_name` knows is raised as such.
    """

    number: int
    kind: str
    message: str


class Reply(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Engine to front end: the result of a `Call`."""

    number: int
    value: Any = None
    kind: str = ""
    message: str = ""


class Adapters(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Engine to front end: the names of all loaded LoRA adapters, whenever they have changed."""

    names: list[str]


_METRICS = {kind.__name__: kind for kind in (Counter, Gauge, Histogram)}


def metrics_to_message(metrics: Iterable[Metric]) -> list[list[Any]]:
    """Plain values from which `metrics_from_message` restores the metrics."""
    return [[type(each).__name__, dataclasses.asdict(each)] for each in metrics]


def metrics_from_message(message: Iterable[Any]) -> list[Metric]:
    """The inverse of `metrics_to_message`."""
    return [_METRICS[name](**fields) for name, fields in message]


def pack_head_rows(head: HeadRows) -> list[Any]:
    """Plain values from which `unpack_head_rows` restores rows of the head."""
    return [head.version, list(head.rows.shape), head.rows.astype("<f4").tobytes()]


def unpack_head_rows(message: Sequence[Any]) -> HeadRows:
    """The inverse of `pack_head_rows`."""
    version, shape, data = message
    return HeadRows(np.frombuffer(data, np.dtype("<f4")).reshape(shape), version)


ToEngine = Add | End | Call
ToFrontEnd = Hello | Step | Refused | Reply | Adapters

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_front_end = msgspec.msgpack.Decoder(ToFrontEnd)


def encode(message: ToEngine | ToFrontEnd) -> bytes:
    """Encode a message for the socket: its length, then its content."""
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data


def decode_to_engine(data: bytes) -> ToEngine:
    """A front end's message; ValueError if it is none."""
    return _to_engine.decode(data)


def decode_to_front_end(data: bytes) -> ToFrontEnd:
    """An engine's message; ValueError if it is none."""
    return _to_front_end.decode(data)


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next message's bytes, None at the end; ValueError if it is longer than any message."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "little")
        if length > _MAX_FRAME_BYTES:
            raise ValueError(f"a message of {length} bytes; at most {_MAX_FRAME_BYTES} are read")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
