"""One front end: an engine, its settings, and the requests that run."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from jaxinfer.errors import JaxinferError
from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.openai.engine_client import EngineClient
from jaxinfer.server.openai.errors import ApiError, client_errors, presentable, with_routes
from jaxinfer.server.openai.merging import Stream, merged
from jaxinfer.server.openai.prompts import Prompts
from jaxinfer.server.openai.protocol.structured import grammar_errors
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.openai.work.lanes import LARGE
from jaxinfer.server.telemetry.latest import Latest
from jaxinfer.server.telemetry.telemetry import Telemetry
from jaxinfer.serving.parsers.answer_format import AnswerFormat
from jaxinfer.serving.parsers.names import reasoning_parser_name, tool_parser_name
from jaxinfer.serving.requests.new_request import Prompt

_FIELDS = frozenset(
    (
        *("prompt", "messages", "input", "max_tokens", "priority", "cache_salt", "timeout"),
        *("stop", "stop_token_ids", "allowed_token_ids", "logit_bias", "bad_words"),
        *("logprobs", "prompt_logprobs", "truncate_prompt_tokens", "thinking_token_budget"),
        *("prompt_logprob_start", "forced_token_ids"),
    )
)

_JOBS_AT_ONCE = 16  # in one turn of the event loop

Outputs = Stream[tuple[int, RequestOutput]]
"""Outputs of a request's prompts in order of arrival, each with its prompt's index."""

_METRICS_WITHIN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One prompt for the engine.

    Attributes:
        prefill_only: nothing is sampled.
        pooled: nothing is sampled, and its output has the vector of its last token.
        grammar_field: the request's field that gives its grammar, if any.
        answer: the format for parsing its text; None leaves it whole.
        adapter: the name of its LoRA adapter.
    """

    prompt: Prompt
    params: SamplingParams
    label: str
    priority: int = 0
    prefill_only: bool = False
    pooled: bool = False
    grammar_field: str | None = None
    answer: AnswerFormat | None = None
    adapter: str | None = None


class Front:
    """The state that all routes share: engine, settings, telemetry and running requests."""

    def __init__(
        self, engine: EngineClient, settings: ServerSettings, telemetry: Telemetry
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.telemetry = telemetry
        self.engine_metrics = Latest(engine.get_metrics, _METRICS_WITHIN_S)
        """The engine's counters, current or as last read."""
        self.prompts = Prompts(engine, settings.template_kwargs)
        template = engine.tokenizer.chat_template if engine.tokenizer else None
        for_tools = engine.tokenizer.tool_chat_template if engine.tokenizer else None
        self.tool_parser = tool_parser_name(settings.tool_call_parser, for_tools)
        self.reasoning_parser = reasoning_parser_name(settings.reasoning_parser, template)
        self.thinks = self.reasoning_parser is not None and self.prompts.reader.thinks
        """Reasoning is read, and begins and ends with tokens of the model."""
        self._large_answer = asyncio.Lock()
        self.started = int(time.time())
        self.num_running = 0
        """Number of requests being served."""

    @property
    def adapters(self) -> Sequence[str]:
        """The names of loaded LoRA adapters, as far as the model's own don't hide them."""
        served = self.settings.served_model_names
        return [name for name in getattr(self.engine, "adapters", ()) if name not in served]

    def adapter_of(self, model: str | None) -> str | None:
        """The adapter that a request's `model` names; None for the model itself."""
        return model if model is not None and model in self.adapters else None

    def check_model(self, name: str | None, *, adapts: bool = False) -> None:
        """Raise an ApiError for a name that is not served (404), or not by this route (400).

        Args:
            adapts: whether the route takes adapters.
        """
        served = self.settings.served_model_names
        if name is None or name in served:
            return
        if not adapts and self.adapter_of(name):
            raise ApiError(
                400,
                f"this route knows no adapters, and {name[:100]!r} is one; name the model",
                param="model",
            )
        served = (*served, *self.adapters)
        if name not in served:
            known = ", ".join(served)
            raise ApiError(
                404,
                f"there is no model {name[:100]!r}; served: {known}",
                param="model",
                code="model_not_found",
            )

    async def start(self, jobs: Sequence[Job]) -> Outputs:
        """Hand a request's prompts to the engine; closing the iteration aborts them.

        Raises:
            ApiError: the engine refuses one, at once or in the iteration; or it ended in an error.
        """
        streams: list[AsyncGenerator[RequestOutput]] = []
        if any(job.params.bad_words for job in jobs):
            with client_errors(_FIELDS):
                await self.prompts.check_params(
                    {id(job.params): job.params for job in jobs}.values()
                )
        try:
            for i, job in enumerate(jobs):
                if i % _JOBS_AT_ONCE == _JOBS_AT_ONCE - 1:
                    await asyncio.sleep(0)
                streams.append(self._generate(job))
        except BaseException:
            for stream in streams:
                await stream.aclose()
            raise
        return self._checked(streams, next((job.grammar_field for job in jobs), None))

    async def write[T](self, work: Callable[[], T], size: int) -> T:
        """The result of `work`, which writes about `size` bytes; a large one runs in a thread.

        One thread at a time: several would leave the event loop less time.
        """
        if size <= LARGE:
            return work()
        async with self._large_answer:
            return await asyncio.to_thread(work)

    def _generate(self, job: Job) -> AsyncGenerator[RequestOutput]:
        prompt = {"prompt_token_ids": job.prompt.token_ids}
        adapter = {} if job.adapter is None else {"lora_request": job.adapter}
        named = {"prompt": job.prompt.text, "cache_salt": job.prompt.cache_salt}
        try:
            with client_errors(_FIELDS), grammar_errors(job.grammar_field):
                outputs = self.engine.generate(
                    prompt | {name: value for name, value in named.items() if value is not None},
                    job.params,
                    job.label,
                    priority=job.priority,
                    prefill_only=job.prefill_only,
                    pooled=job.pooled,
                    answer=job.answer,
                    **adapter,
                )
        except JaxinferError:
            raise
        except RuntimeError as error:  # closed, asleep or paused: it may be back
            raise ApiError(503, with_routes(str(error)), code="engine_unavailable") from None
        is_delta = job.params.output_kind == RequestOutputKind.DELTA
        return self.telemetry.watch(outputs, delta=is_delta)

    async def _checked(
        self, streams: Sequence[AsyncGenerator[RequestOutput]], grammar_field: str | None
    ) -> AsyncGenerator[tuple[int, RequestOutput]]:
        self.num_running += 1
        try:
            # Only the engine's refusals, not errors of the consumer.
            with client_errors(_FIELDS), grammar_errors(grammar_field):
                if len(streams) == 1:  # `merged` would be one more frame for every token
                    async with contextlib.aclosing(streams[0]) as only:
                        async for output in only:
                            yield 0, _checked_output(output)
                    return
                async with contextlib.aclosing(merged(streams)) as outputs:
                    async for index, output in outputs:
                        yield index, _checked_output(output)
        finally:
            self.num_running -= 1


def front_of(request: Request) -> Front:
    """The front end whose application handles a request."""
    return cast(Front, request.app.state.front)


def _checked_output(output: RequestOutput) -> RequestOutput:
    """The output, unless it says that the request failed."""
    if output.error is not None:
        raise _failure(output)
    return output


def _failure(output: RequestOutput) -> ApiError:
    """The error of a request that failed: the engine's fault, or a limit of the service."""
    why = presentable(output.error or "")
    if why.startswith("GrammarError"):
        return ApiError(400, f"the answer can't be continued: {why}", code="grammar_too_complex")
    if why.startswith("NoTokenLeft"):
        return ApiError(400, f"the answer can't be continued: {why}", code="no_token_left")
    if any(each.finish_reason == "abort" for each in output.outputs):
        return ApiError(503, f"the request was ended: {why}", code="request_aborted")
    return ApiError(500, f"the engine failed: {why}", code="engine_error")


async def finals(outputs: Outputs) -> list[RequestOutput]:
    """The final output of each prompt, in order."""
    last: dict[int, RequestOutput] = {}
    async with contextlib.aclosing(outputs):
        async for index, output in outputs:
            last[index] = output
    return [last[index] for index in sorted(last)]
