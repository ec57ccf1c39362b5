"""The counterpart of `AsyncLLM` for an engine in another process, used by front ends."""

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from jaxinfer.errors import (
    EngineDeadError,
    EngineRestartingError,
    ShuttingDownError,
)
from jaxinfer.expert_statistics import RebalancedExperts
from jaxinfer.model.config import ModelConfig
from jaxinfer.model.score_head import ScoreHead
from jaxinfer.model.text.tokenizer import Tokenizer
from jaxinfer.outputs import TIMEOUT, RequestOutput
from jaxinfer.sampling_params import SamplingParams
from jaxinfer.server.service.description import (
    EngineDescription,
    engine_message,
    with_adapter_of_name,
)
from jaxinfer.server.service.engine_link import EngineLink
from jaxinfer.server.service.messages import Add, End, Step, metrics_from_message, unpack_head_rows
from jaxinfer.server.service.remote_request import RemoteRequest
from jaxinfer.server.service.scores import scores_of_rows
from jaxinfer.serving.driver.sleep import check_level, check_mode
from jaxinfer.serving.driver.sleep_state import PauseMode, SleepTag
from jaxinfer.serving.engine.metrics import Metric
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.pooling.async_judge import AsyncJudge
from jaxinfer.serving.pooling.embedding_model import (
    EmbeddingModel,
    makes_vectors,
    read_embedding_model,
)
from jaxinfer.serving.pooling.task import ONLY_POOLS, HeadRows
from jaxinfer.serving.requests.new_request import NewRequest, wanted_outputs
from jaxinfer.serving.requests.prompts import match_params, split_prompts

LONGEST_SILENCE_S = 30.0
"""The engine's process always answers pings, except for seconds while it traces a program."""

_REOPEN_EVERY_S = 0.1
_RETRY_AFTER_S = 5
_NOT_SENT = (
    "entropy, support and logprob_token_ids are not sent by a service's engine; use LLM or AsyncLLM"
)


class RemoteLLM:
    """A model in another process that completes prompts for the tasks of one event loop.

    It is an `EngineClient` whose outputs are those of `AsyncLLM`: the engine's process makes tokens
    and log-probabilities, this one text, with a tokenizer of its own. It imports no JAX.

    Args:
        link: the connection, not started yet.
        tokenizer: this process's own; None for token ids only.
        reopen: makes a new connection after this one is lost, to an engine of the same model; tried
            until it succeeds. Meanwhile requests are refused. None leaves it lost.
    """

    def __init__(
        self,
        link: EngineLink,
        tokenizer: Tokenizer | None,
        model_config: ModelConfig,
        reopen: Callable[[], Awaitable[EngineLink]] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        """The tokenizer; None if only token ids go in and out."""
        self.model_config = model_config
        """The model's shape."""
        self._reopen = reopen
        self._reopening: asyncio.Task[None] | None = None
        self._streams: dict[int, RemoteRequest] = {}
        self._is_draining = False
        self._is_closed = False
        self._use(link)

    def _use(self, link: EngineLink) -> None:
        """Send requests over this connection from now on."""
        self._link = link
        self._description = link.description
        self._reader = link.description.prompt_reader(self.tokenizer, self.model_config)
        self._last: tuple[SamplingParams, SamplingParams] | None = None  # a copy, and as checked
        self._sent_params: SamplingParams | None = None
        link.on_step = self._take_step
        link.on_refused = self._refuse
        link.on_lost = self._lose
        link.start()

    @classmethod
    async def connect(cls, path: str) -> "RemoteLLM":
        """The engine that listens at a Unix domain socket, or the next one that does.

        Raises:
            OSError: no engine listens there.
            EngineDeadError: it ended before it answered.
            ModelLoadError: the model's tokenizer can't be read.
        """
        link = await EngineLink.open(path)
        tokenizer = await asyncio.to_thread(link.description.read_tokenizer)
        shape = link.description.read_model_config()
        return cls(link, tokenizer, shape, lambda: EngineLink.open(path))

    @property
    def description(self) -> EngineDescription:
        """The engine's process's own description."""
        return self._description

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self._description.max_model_len

    @property
    def adapters(self) -> tuple[str, ...]:
        """The names of the loaded LoRA adapters."""
        return self._link.adapters

    @property
    def embedding_model(self) -> EmbeddingModel:
        """What the model's files say of its vectors; read when it is first asked for.

        Raises:
            ModelLoadError, ValueError: as `read_embedding_model`.
        """
        return self._embedding_model

    @functools.cached_property
    def _embedding_model(self) -> EmbeddingModel:
        directory, overrides = self._description.directory, self._description.config.hf_overrides
        return read_embedding_model(directory, self.model_config.hidden_size, overrides)

    @functools.cached_property
    def _classifier(self) -> ScoreHead | None:
        return self._description.read_classifier(self.model_config)

    @property
    def is_running(self) -> bool:
        """True if it takes requests."""
        return not (self._is_closed or self._is_draining or self._link.failure)

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling parameters of a call that gives none; a copy."""
        return self._description.default_params.clone()

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        prefill_only: bool = False,
        pooled: bool = False,
        answer: AnswerFormat | None = None,
        lora_request: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Complete one prompt, for `async for`; arguments as for `AsyncLLM.generate`.

        Args:
            lora_request: the name of a loaded adapter alone.

        Returns:
            An iterator of outputs. The last has `finished`; after `abort`, and when a limit of the
            service ends it, its `finish_reason` is "abort", and `error` names the limit. An output
            has everything new since the one before, even if it is of several steps.

        Raises:
            TypeError, ValueError: not a prompt, or it can't be run.
            ShuttingDownError: the service ends.
            EngineRestartingError: the engine's process has ended, and another one starts.
            QueueFullError: too many requests wait; in the iteration.
            EngineUnavailableError: the engine sleeps, or is paused and refuses requests; in the
                iteration.
            EngineDeadError: the engine's process has ended; in the iteration.
        """
        self._check_open()
        parts = split_prompts(prompt)
        if len(parts) != 1:
            raise ValueError(f"expected one prompt, got {len(parts)}; make a call for each")
        (given,) = match_params(sampling_params, 1, self._description.default_params)
        params = self._checked(given)
        if params.is_measured:
            raise ValueError(_NOT_SENT)
        prefill_only = prefill_only or pooled
        only_pools = self._description.config.runner == "pooling"
        if only_pools and (not pooled or params.prompt_logprobs is not None):
            raise ValueError(ONLY_POOLS)
        (checked,) = self._reader.read_parts(
            parts, [self._reader.prompt_limit(params)], num_outputs=0 if prefill_only else 1
        )
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise TypeError(f"priority must be an integer, got {priority!r}")
        if priority and self._description.config.scheduling_policy == "fcfs":
            raise ValueError(
                f"priority is {priority}, but requests are served first come, first served; "
                "start the service with --scheduling-policy fair, or leave it 0"
            )
        request = NewRequest(
            prompt=with_adapter_of_name(checked, lora_request),
            params=params,
            kind=wanted_outputs(params),
            prefill_only=prefill_only,
            pooled=pooled,
            priority=priority,
            label=request_id or "",
            answer=answer,
        )
        return self._stream(request)

    @property
    def judge(self) -> AsyncJudge:
        """Chooses between labels, ranks documents and scores pairs of texts.

        Raises:
            JaxinferError, RuntimeError: the engine can't take requests, as for `generate`.
        """
        self._check_open()
        directory = self._description.directory
        return AsyncJudge(
            self._reader,
            lambda: makes_vectors(directory),
            self._stream,
            self._head_rows,
            self._classifier,
        )

    async def _head_rows(self, token_ids: tuple[int, ...]) -> HeadRows:
        """Rows of the head for logits of a few tokens: see `HeadReader.read`."""
        return unpack_head_rows(await self._call("head_rows", list(token_ids)))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End all requests of these names that came through this front end.

        Each iteration ends with an output whose `finish_reason` is "abort".
        """
        labels = {request_id} if isinstance(request_id, str) else set(request_id)
        for number, stream in list(self._streams.items()):
            if stream.label in labels:
                self._end_in_engine(number, stream.end("abort"))

    async def check_health(self) -> None:
        """Return if the engine answers and requests are taken.

        Raises:
            EngineDeadError: it has failed for good, or does not answer.
            EngineRestartingError: another one starts.
            ShuttingDownError: the service ends.
        """
        self._check_open()
        if self._link.failure is not None:
            raise self._link.failure
        if (silence := self._link.silence) > LONGEST_SILENCE_S:
            raise EngineDeadError(f"the engine's process has not answered for {silence:.0f} s")

    async def get_metrics(self) -> list[Metric]:
        """The engine's counters: vLLM's names, prefixed "jaxinfer:", over all front ends."""
        return metrics_from_message(await self._call("get_metrics"))

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; running requests go on with their blocks. True, as in vLLM."""
        await self._call("reset_prefix_cache")
        return True

    async def load_adapter(self, name: str, source: str) -> None:
        """Load a LoRA adapter from a directory of the engine's machine: see `LLM.load_adapter`."""
        await self._call("load_adapter", name, source)

    async def update_adapter(self, name: str, source: str) -> None:
        """Replace a loaded LoRA adapter: see `LLM.update_adapter`."""
        await self._call("update_adapter", name, source)

    async def unload_adapter(self, name: str) -> None:
        """Forget a loaded LoRA adapter: see `LLM.unload_adapter`."""
        await self._call("unload_adapter", name)

    async def pause(self, mode: PauseMode = "abort", *, refuse: bool = False) -> None:
        """Run no step until `resume`, for all front ends: see `LLM.pause`."""
        check_mode(mode)
        await self._call("pause", mode, refuse)

    async def resume(self) -> None:
        """Run steps again after `pause`."""
        await self._call("resume")

    async def is_paused(self) -> bool:
        """True if no step runs, because of `pause` or `sleep`."""
        return await self._call("is_paused")

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Give the devices' memory back until `wake_up`: see `LLM.sleep`.

        Raises:
            ValueError: the level is unknown, or 2: no route could bring the weights back.
        """
        check_level(level)
        if level == 2:
            raise ValueError("level 2 drops weights that a service can't replace; send level 1")
        check_mode(mode)
        await self._call("sleep", level, mode)

    async def wake_up(self, tags: Sequence[SleepTag] | None = None) -> None:
        """Restore what was put to sleep: see `LLM.wake_up`."""
        await self._call("wake_up", None if tags is None else list(tags))

    async def is_sleeping(self) -> bool:
        """True if any part of the engine sleeps."""
        return await self._call("is_sleeping")

    async def rebalance_experts(
        self, load: Sequence[Sequence[float]] | None = None
    ) -> RebalancedExperts:
        """Move experts between devices, by their load: see `LLM.rebalance_experts`."""
        return RebalancedExperts(**await self._call("rebalance_experts", load))

    async def start_profile(self, directory: str | os.PathLike[str]) -> None:
        """Record a profile of the engine's process, until `stop_profile`."""
        await self._call("start_profile", str(directory))

    async def stop_profile(self) -> None:
        """End the recording and write it; RuntimeError if none is running."""
        await self._call("stop_profile")

    def start_draining(self) -> None:
        """Take no more requests; what runs goes on."""
        self._is_draining = True

    async def drained(self) -> None:
        """Return when no request is open."""
        while self._streams:
            await asyncio.sleep(0.02)

    def abort_all(self) -> None:
        """End every request, each with a last output, "abort"."""
        for number, stream in list(self._streams.items()):
            self._end_in_engine(number, stream.end("abort"))

    async def shutdown(self) -> None:
        """Abort everything and end the connection; the engine's process goes on."""
        self._is_closed = True
        self.abort_all()
        if self._reopening is not None:
            self._reopening.cancel()
        await self._link.close()
        if self.tokenizer is not None:
            self.tokenizer.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this RemoteLLM is closed; connect a new one")
        if self._is_draining:
            raise ShuttingDownError("the service is shutting down and takes no more requests")
        self._check_not_restarting()

    def _check_not_restarting(self) -> None:
        if self._reopening is not None and not self._reopening.done():
            raise EngineRestartingError(
                "the engine's process has ended and is started anew; try again later",
                retry_after=_RETRY_AFTER_S,
            )

    async def _call(self, name: str, *arguments: Any) -> Any:
        self._check_not_restarting()
        return await self._link.call(name, *arguments)

    def _checked(self, given: SamplingParams) -> SamplingParams:
        """A copy, checked; the same one for the prompts of a call, whose parameters are equal.

        Checks go through all bad words and token ids, and a call may have a thousand prompts.
        """
        if self._last is None or vars(self._last[0]) != vars(given):
            copy = given.clone()
            self._last = copy, self._reader.check_params(copy)
        return self._last[1]

    async def _stream(self, request: NewRequest) -> AsyncGenerator[RequestOutput]:
        if self._link.failure is not None:
            raise self._link.failure
        number = self._link.new_number()
        stream = self._streams[number] = RemoteRequest(request, self.tokenizer)
        loop, timers = asyncio.get_running_loop(), []
        if limit := self._description.limits.request_timeout:
            timers.append(loop.call_later(limit, self._expire, number, limit))
        if (asked := request.params.timeout) is not None:
            timers.append(loop.call_later(asked, self._time_out, number))
        self._link.send(Add(number, engine_message(request, self._sent_params)))
        self._sent_params = request.params
        try:
            finished = False
            while not finished:
                output = await stream.next_output()
                finished = output.finished
                yield output
        finally:
            for timer in timers:
                timer.cancel()
            self._end_in_engine(number, stream.end("abort"))
            del self._streams[number]

    def _take_step(self, step: Step) -> None:
        most = self._description.limits.max_undelivered_tokens
        scores = scores_of_rows(step.scores)
        for i, row in enumerate(step.rows):
            stream = self._streams.get(row.number)
            if stream is None:
                continue
            self._end_in_engine(row.number, stream.take(row, step.time, scores.get(i, ())))
            if stream.num_undelivered > most and not stream.is_whole:
                reason = f"its reader left more than {most} tokens unread"
                self._end_in_engine(row.number, stream.end("abort", reason))

    def _expire(self, number: int, limit: float) -> None:
        stream = self._streams[number]
        reason = f"it was not done within its time limit, {limit:g} s"
        self._end_in_engine(number, stream.end("abort", reason))

    def _time_out(self, number: int) -> None:
        """End a request at its own time limit, which is not an error."""
        stream = self._streams[number]
        self._end_in_engine(number, stream.end("abort", stop_reason=TIMEOUT))

    def _refuse(self, number: int, error: Exception) -> None:
        if (stream := self._streams.get(number)) is not None:
            stream.refuse(error)

    def _lose(self, error: Exception) -> None:
        for stream in self._streams.values():
            stream.refuse(error)
        if self._reopen is not None:
            self._reopening = asyncio.create_task(self._connect_again(self._reopen))

    async def _connect_again(self, reopen: Callable[[], Awaitable[EngineLink]]) -> None:
        while True:
            try:
                link = await reopen()
            except (OSError, EngineDeadError):  # it starts, or has ended again
                await asyncio.sleep(_REOPEN_EVERY_S)
            else:
                return self._use(link)

    def _end_in_engine(self, number: int, completions: Iterable[int]) -> None:
        ended = [(number, index) for index in completions]
        if ended:
            self._link.send(End(ended))
