"""The route `POST /v1/completions`: continues prompts."""

from collections.abc import AsyncGenerator

from fastapi import APIRouter
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.openai.answering.chunks import Chunks
from jaxinfer.server.openai.answering.head import head
from jaxinfer.server.openai.answering.json_answer import id_header, json_answer
from jaxinfer.server.openai.answering.usage import UsageCount
from jaxinfer.server.openai.errors import client_errors, invalid
from jaxinfer.server.openai.front import Front, Job, Outputs, finals, front_of
from jaxinfer.server.openai.logprobs import answer_size
from jaxinfer.server.openai.merging import BEGIN_SECONDS, begun
from jaxinfer.server.openai.protocol.completion import (
    MAX_TOKENS,
    CompletionAnswer,
    CompletionBody,
    CompletionChoice,
)
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.routes.completion_choices import ChoiceWriter
from jaxinfer.server.openai.sse import DONE, EventStream, encode

MAX_CHOICES = 4096

router = APIRouter(route_class=ApiRoute)


@router.post(
    "/v1/completions",
    response_model=None,
    responses={200: {"model": CompletionAnswer, "content": {"text/event-stream": {}}}},
)
async def complete(body: CompletionBody, request: Request) -> Response:
    """Continue prompts."""
    front = front_of(request)
    front.check_model(body.model, adapts=True)
    body.check_together()
    params = _params(body, front)
    if (choices := params.n * len(body.prompts)) > MAX_CHOICES:
        raise invalid(f"n times the prompts is {choices}; ask for {MAX_CHOICES} at most", "n")
    begin = head("text_completion", "cmpl", front, front.adapter_of(body.model))
    outputs = await front.start(await _jobs(body, params, begin["id"], front))
    writers = _writers(body, params, front)
    if body.stream:
        outputs = await begun(outputs, BEGIN_SECONDS)
        return EventStream(
            _events(outputs, writers, Chunks(begin, body.stream_options)),
            outputs,
            keep_alive_seconds=front.settings.keep_alive_seconds,
            headers=id_header(body.request_id),
        )
    whole = await finals(outputs)

    def answer() -> Response:
        count, choices = UsageCount(), []
        for i, output in enumerate(whole):
            count.add(i, output)
            choices += [Raw(encode(choice)) for choice in _choices(writers, i, output)]
        fields = {**begin, "service_tier": None, "choices": choices, "usage": count.usage()}
        return json_answer(fields, body.request_id)

    return await front.write(answer, sum(map(answer_size, whole)))


def _params(body: CompletionBody, front: Front) -> SamplingParams:
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    most = MAX_TOKENS if body.max_tokens is None else body.max_tokens
    scored = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        scored = max(scored or 0, body.logprobs)
    with client_errors(CompletionBody.model_fields):
        return body.sampling_params(
            front.engine.get_default_sampling_params(),
            max_tokens=most or None,
            logprobs=body.logprobs,
            prompt_logprobs=scored,
            output_kind=kind,
        )


async def _jobs(
    body: CompletionBody, params: SamplingParams, label: str, front: Front
) -> list[Job]:
    prefill_only = body.max_tokens == 0
    special = body.add_special_tokens
    prompts = await front.prompts.read(
        body.prompts,
        limit=front.prompts.reader.prompt_limit(params),
        num_outputs=0 if prefill_only else 1,
        add_special_tokens=True if special is None else special,
        cache_salt=body.cache_salt,
    )
    return [
        Job(
            prompt=prompt,
            params=params,
            label=f"{label}-{i}",
            priority=body.priority or 0,
            prefill_only=prefill_only,
            grammar_field=body.grammar_field,
            adapter=front.adapter_of(body.model),
        )
        for i, prompt in enumerate(prompts)
    ]


def _writers(
    body: CompletionBody, params: SamplingParams, front: Front
) -> list[list[ChoiceWriter]]:
    """A writer for each choice of each prompt, ``[prompt][choice]``."""
    tokenizer, skip = front.engine.tokenizer, params.skip_special_tokens
    return [
        [ChoiceWriter(i * params.n + j, body, tokenizer, skip) for j in range(params.n)]
        for i in range(len(body.prompts))
    ]


def _choices(
    writers: list[list[ChoiceWriter]], index: int, output: RequestOutput
) -> list[CompletionChoice]:
    pairs = zip(writers[index], output.outputs, strict=True)
    return [writer.whole(completion, output) for writer, completion in pairs]


async def _events(
    outputs: Outputs, writers: list[list[ChoiceWriter]], chunks: Chunks
) -> AsyncGenerator[bytes]:
    count = UsageCount()
    async for index, output in outputs:
        count.add(index, output)
        usage = count.usage() if chunks.each_has_usage else None
        pairs = zip(writers[index], output.outputs, strict=True)
        # One write for all that came at once.
        yield b"".join(
            chunks.event(choice, usage)
            for writer, completion in pairs
            for choice in writer.stream(completion, output)
        )
    if chunks.ends_with_usage:
        yield chunks.event(None, count.usage())
    yield DONE
