"""The requests of one front end at the engine, and the results not sent to it yet."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxinfer.errors import AdapterNotFoundError, QueueFullError
from jaxinfer.model.adapters.adapter import Adapter
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.service.description import request_of_message
from jaxinfer.server.service.messages import Add, News, Refused, Row, Step, ToFrontEnd
from jaxinfer.server.service.scores import ScoreBlocks, pack_prompt_scores
from jaxinfer.serving.driver.driver import Driver
from jaxinfer.serving.requests.new_request import NewRequest, new_key
from jaxinfer.serving.requests.token_group import RunFacts, TokenOutput

FindAdapter = Callable[[str], Adapter | None]

_QUEUE_FULL = "the request queue is full; try again later, or raise max_waiting_requests"


def no_adapter(name: str) -> Adapter | None:
    """Refuse any: the engine has none."""
    raise AdapterNotFoundError(f"no adapter {name[:100]!r} is loaded")


class FrontEndRequests:
    """The requests of one front end; used in the engine's thread alone.

    A front end's numbers identify its own requests only; the engine's keys are made here, so that
    no front end can name another's requests.

    Args:
        send: takes a message for the front end, without waiting.
        has_room_for: returns True if that many completions may be enqueued.
        find_adapter: returns the loaded adapter of a name; AdapterNotFoundError if
            there is none.
    """

    def __init__(
        self,
        driver: Driver,
        send: Callable[[ToFrontEnd], None],
        has_room_for: Callable[[int], bool],
        find_adapter: FindAdapter = no_adapter,
    ) -> None:
        self._driver = driver
        self._send = send
        self._has_room_for = has_room_for
        self._find_adapter = find_adapter
        self._keys: dict[tuple[int, int], str] = {}
        self._rows: list[Row] = []
        self._scores = ScoreBlocks()
        self._params: SamplingParams | None = None  # of the last request that came
        self._time = 0.0
        self.tasks: set[asyncio.Future[None]] = set()
        """Calls that run; of the event loop's thread."""

    def __len__(self) -> int:
        """Completions that have not ended."""
        return len(self._keys)

    def add(self, message: Add) -> None:
        """Enqueue a request's completions, or tell the front end why not."""
        number = message.number
        try:
            before, self._params = self._params, None
            request = request_of_message(message.request, before)
            self._params = request.params
            if (named := request.prompt.adapter) is not None:
                own = dataclasses.replace(request.prompt, adapter=self._find_adapter(named.name))
                request = dataclasses.replace(request, prompt=own)
            if not self._has_room_for(request.params.n):
                raise QueueFullError(_QUEUE_FULL)
            requests = [
                _completion(request, params, index, self._sink(number, index))
                for index, params in enumerate(_params_of_completions(request.params))
            ]
            for index, completion in enumerate(requests):
                self._keys[number, index] = completion.key
            self._driver.submit_soon(requests)
        except Exception as error:
            self._refuse(number, error)

    def end(self, completions: Sequence[tuple[int, int]]) -> None:
        """End completions without a waiting client; ended ones are ignored."""
        keys = [self._keys.pop((number, index), None) for number, index in completions]
        self._driver.cancel([key for key in keys if key is not None])

    def cancel_all(self) -> None:
        """End all of them: the front end has gone."""
        self.end(list(self._keys))
        self._rows.clear()
        self._scores.take()

    def flush(self) -> None:
        """Send what has come since the last call, in one message."""
        if self._rows:
            rows, self._rows = self._rows, []
            self._send(Step(self._time, rows, self._scores.take()))

    def _sink(self, number: int, index: int) -> Callable[[TokenOutput | BaseException], None]:
        """The collector of a completion's outputs; called for each row of each step."""

        def take(output: TokenOutput | BaseException) -> None:
            if isinstance(output, BaseException):
                self._refuse(number, output)
                return
            if output.finished and self._keys.pop((number, index), None) is None:
                return  # the front end has ended it
            self._time = output.time
            # First what may raise: scores left without a row would be taken for the next row's.
            news = None if output.facts is None else _news(output.facts, output)
            if output.scores:
                self._scores.add(len(self._rows), output.scores)
            self._rows.append(Row(number, index, output.token_ids, news))

        return take

    def _refuse(self, number: int, error: BaseException) -> None:
        self.end([key for key in self._keys if key[0] == number])
        self._send(Refused(number, type(error).__name__, str(error)))


def _params_of_completions(params: SamplingParams) -> list[SamplingParams]:
    """The parameters of each completion; the prompt is scored once."""
    if params.n == 1:
        return [params]
    first = params.clone(n=1)
    return [first] + [first.clone(prompt_logprobs=None, prompt_logprob_start=0)] * (params.n - 1)


def _completion(
    request: NewRequest, params: SamplingParams, index: int, sink: Callable[[Any], None]
) -> NewRequest:
    """One of a request's completions, as a request of its own."""
    key = new_key()
    return dataclasses.replace(
        request,
        params=params,
        key=key,
        label=key,
        kind="tokens",
        seed_offset=index,
        sink=sink,
    )


def _news(facts: RunFacts, output: TokenOutput) -> News:
    return News(
        facts,
        output.finish_reason,
        output.stop_reason,  # pyright: ignore[reportArgumentType]  # strings: front ends find them
        [pack_prompt_scores(*each) for each in output.prompt_scores],
        output.error,
        b"" if output.embedding is None else output.embedding.astype(np.float32).tobytes(),
    )
