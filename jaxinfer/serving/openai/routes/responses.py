"""`POST /v1/responses`, text only."""

import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.serving.openai.errors import ApiError, client_errors
from jaxinfer.serving.openai.front import Front, Job, Outputs, finals
from jaxinfer.serving.openai.merging import begun
from jaxinfer.serving.openai.protocol.responses import ResponsesAnswer, ResponsesBody
from jaxinfer.serving.openai.route import ApiRoute
from jaxinfer.serving.openai.routes.common import (
    BEGIN_SECONDS,
    UsageCount,
    front_of,
    json_answer,
    new_id,
)
from jaxinfer.serving.openai.routes.response_events import ResponseEvents, finish, output_message
from jaxinfer.serving.openai.sse import EventStream, encode

router = APIRouter(route_class=ApiRoute)

_NAMES = {"max_tokens": "max_output_tokens", "messages": "input"}


@router.post(
    "/v1/responses",
    response_model=None,
    responses={200: {"model": ResponsesAnswer, "content": {"text/event-stream": {}}}},
)
async def respond(body: ResponsesBody, request: Request) -> Response:
    """Answer a text or a conversation."""
    front = front_of(request)
    front.check_model(body.model)
    body.check_together()
    with client_errors(ResponsesBody.model_fields, lambda word: _NAMES.get(word, word)):
        params = _params(body, front)
    answer = _in_progress(body, params, front)
    outputs = await front.start([await _job(body, params, answer["id"], front)])
    if body.stream:
        outputs = await begun(outputs, BEGIN_SECONDS)
        return EventStream(
            _events(outputs, answer),
            outputs,
            keep_alive_seconds=front.settings.keep_alive_seconds,
            error_event=_error_event,
        )
    (output,) = await finals(outputs)
    return json_answer(_finished(answer, output))


def _params(body: ResponsesBody, front: Front) -> SamplingParams:
    own = {"temperature": body.temperature, "top_p": body.top_p, "seed": body.seed}
    return front.engine.get_default_sampling_params().clone(
        max_tokens=body.max_output_tokens,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        **{name: value for name, value in own.items() if value is not None},
    )


async def _job(body: ResponsesBody, params: SamplingParams, label: str, front: Front) -> Job:
    text = await front.prompts.render(
        body.messages(), chat_template_kwargs=body.chat_template_kwargs
    )
    (prompt,) = await front.prompts.read(
        [text], name="input", add_special_tokens=False, cache_salt=body.cache_salt
    )
    return Job(prompt=prompt, params=params, label=label)


def _in_progress(body: ResponsesBody, params: SamplingParams, front: Front) -> ResponsesAnswer:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": front.settings.model_name,
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _finished(answer: ResponsesAnswer, output: RequestOutput) -> ResponsesAnswer:
    count = UsageCount()
    count.add(0, output)
    (completion,) = output.outputs
    message = output_message(new_id("msg"), completion.text, completion.finish_reason)
    return finish(answer, message, completion.finish_reason, count.usage())


async def _events(outputs: Outputs, answer: ResponsesAnswer) -> AsyncGenerator[bytes]:
    events, count = ResponseEvents(answer, new_id("msg")), UsageCount()
    for event in events.begin():
        yield event
    reason = None
    async for index, output in outputs:
        count.add(index, output)
        (completion,) = output.outputs
        reason = completion.finish_reason
        if completion.text:
            yield events.delta(completion.text)
    for event in events.end(reason, count.usage()):
        yield event


def _error_event(error: ApiError) -> bytes:
    details = error.body["error"]
    value = {"type": "error", **details, "code": details["code"] or details["type"]}
    return b"event: error\ndata: " + encode(value) + b"\n\n"
