"""The route `POST /v1/responses`: answers a text or a conversation."""

import functools
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import CompletionOutput, Piece
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.openai.answering.content_logprobs import ContentLogprobs
from jaxinfer.server.openai.answering.conversation import conversation_job
from jaxinfer.server.openai.answering.head import new_id
from jaxinfer.server.openai.answering.json_answer import id_header, json_answer
from jaxinfer.server.openai.answering.pieces import shown_pieces
from jaxinfer.server.openai.answering.plan import plan_answer
from jaxinfer.server.openai.answering.thinking import wish_of_effort
from jaxinfer.server.openai.answering.usage import UsageCount
from jaxinfer.server.openai.errors import ApiError, client_errors
from jaxinfer.server.openai.front import Front, Outputs, finals, front_of
from jaxinfer.server.openai.merging import BEGIN_SECONDS, begun
from jaxinfer.server.openai.protocol.responses.answer import ResponsesAnswer
from jaxinfer.server.openai.protocol.responses.body import ResponsesBody
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.routes.response_events import ResponseEvents, whole_answer
from jaxinfer.server.openai.sse import EventStream, named_event

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
    front.check_model(body.model, adapts=True)
    body.check_together()
    plan = plan_answer(front, body.tools or (), body.tool_choice, body.parallel_tool_calls)
    with client_errors(ResponsesBody.model_fields, lambda word: _NAMES.get(word, word)):
        params = _params(body, front)
    answer = _in_progress(body, params, front)
    job = await conversation_job(
        body,
        body.messages(),
        params,
        plan,
        answer["id"],
        front,
        field="input",
        thinking=wish_of_effort(body.effort),
        limit=_prompt_limit(body, front),
    )
    logprobs = ContentLogprobs(body.num_logprobs, front.engine.tokenizer, job.answer)
    pieces = functools.partial(shown_pieces, shows_reasoning=body.include_reasoning is not False)
    count = UsageCount(has_reasoning=plan.reasoning_parser is not None)
    outputs = await front.start([job])
    if body.stream:
        outputs = await begun(outputs, BEGIN_SECONDS)
        return EventStream(
            _events(outputs, answer, pieces, logprobs, count),
            outputs,
            keep_alive_seconds=front.settings.keep_alive_seconds,
            headers=id_header(body.request_id),
            error_event=functools.partial(_failure_events, answer=answer),
        )
    (output,) = await finals(outputs)
    count.add(0, output)
    (completion,) = output.outputs
    reason, scores = completion.finish_reason, logprobs.of(completion)
    whole = whole_answer(answer, pieces(completion), reason, count.usage(), scores)
    return json_answer(whole, body.request_id)


def _params(body: ResponsesBody, front: Front) -> SamplingParams:
    return front.engine.get_default_sampling_params().clone(
        max_tokens=body.max_output_tokens,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        structured_outputs=body.grammar(),
        logprobs=body.num_logprobs,
        **body.drawn(),
    )


def _prompt_limit(body: ResponsesBody, front: Front) -> int | None:
    """The number of last tokens to keep, which leave room for the answer; None for all."""
    if body.truncation != "auto":
        return None
    return max(1, front.engine.max_model_len - (body.max_output_tokens or 1))


def _in_progress(body: ResponsesBody, params: SamplingParams, front: Front) -> ResponsesAnswer:
    given = body.model_dump(exclude_none=True, include={"tools", "tool_choice"})
    asked = body.reasoning
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
        "model": front.adapter_of(body.model) or front.settings.model_name,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "temperature": params.temperature,
        "text": {"format": body.text_format.as_sent()},
        "tool_choice": given.get("tool_choice", "auto" if body.tools else "none"),
        "tools": given.get("tools", []),
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "background": False,
        "completed_at": None,
        "max_tool_calls": body.max_tool_calls,
        "prompt": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": asked.summary if asked else None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "top_logprobs": body.top_logprobs or 0,
        "user": body.user,
    }


async def _events(
    outputs: Outputs,
    answer: ResponsesAnswer,
    pieces: Callable[[CompletionOutput], Sequence[Piece]],
    logprobs: ContentLogprobs,
    count: UsageCount,
) -> AsyncGenerator[bytes]:
    events = ResponseEvents(answer)
    for event in events.begin():
        yield event
    reason = None
    async for index, output in outputs:
        count.add(index, output)
        (completion,) = output.outputs
        reason = completion.finish_reason
        events.add_logprobs(logprobs.of(completion))
        for piece in pieces(completion):
            yield b"".join(events.add(piece))
    for event in events.end(reason, count.usage()):
        yield event


def _failure_events(error: ApiError, answer: ResponsesAnswer) -> bytes:
    """The last events after an error: the error itself, and the answer that has failed by it."""
    details = error.body["error"]
    code = details["code"] or details["type"]
    why = {"code": code, "message": details["message"]}
    failed = {**answer, "status": "failed", "error": why}
    return named_event("error", {**details, "code": code, "type": "error"}) + named_event(
        "response.failed", {"type": "response.failed", "response": failed}
    )
