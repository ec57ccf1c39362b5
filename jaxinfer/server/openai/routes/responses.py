"""The route `POST /v1/responses`: answers a text or a conversation."""

import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import CompletionOutput, Piece, Reasoning, RequestOutput
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.openai.answering.content_logprobs import ContentLogprobs
from jaxinfer.server.openai.answering.effort import with_budget, with_thinking
from jaxinfer.server.openai.answering.head import new_id
from jaxinfer.server.openai.answering.json_answer import id_header, json_answer
from jaxinfer.server.openai.answering.output_pieces import pieces_of
from jaxinfer.server.openai.answering.plan import AnswerPlan, guided, plan_answer
from jaxinfer.server.openai.answering.usage import UsageCount
from jaxinfer.server.openai.errors import ApiError, client_errors
from jaxinfer.server.openai.front import Front, Job, Outputs, finals, front_of
from jaxinfer.server.openai.merging import BEGIN_SECONDS, begun
from jaxinfer.server.openai.protocol.responses.answer import ResponsesAnswer
from jaxinfer.server.openai.protocol.responses.body import ResponsesBody
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.routes.response_events import ResponseEvents, whole_answer
from jaxinfer.server.openai.sse import EventStream, encode
from jaxinfer.serving.parsers.reasoning import reasoning_state

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
    plan = plan_answer(
        front, body.chat_tools, body.chat_tool_choice, parallel=body.parallel_tool_calls
    )
    with client_errors(ResponsesBody.model_fields, lambda word: _NAMES.get(word, word)):
        params = _params(body, front)
    answer = _in_progress(body, params, front)
    job = await _job(body, params, plan, answer["id"], front)
    pieces = _Pieces(
        shows_reasoning=body.include_reasoning is not False,
        logprobs=ContentLogprobs(body.num_logprobs, front.engine.tokenizer, job.answer),
    )
    count = UsageCount(has_reasoning=plan.reasoning_parser is not None)
    outputs = await front.start([job])
    if body.stream:
        outputs = await begun(outputs, BEGIN_SECONDS)
        return EventStream(
            _events(outputs, answer, pieces, count),
            outputs,
            keep_alive_seconds=front.settings.keep_alive_seconds,
            headers=id_header(body.request_id),
            error_event=_error_event,
        )
    (output,) = await finals(outputs)
    return json_answer(_finished(answer, output, pieces, count), body.request_id)


def _params(body: ResponsesBody, front: Front) -> SamplingParams:
    return front.engine.get_default_sampling_params().clone(
        max_tokens=body.max_output_tokens,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        structured_outputs=body.grammar(),
        logprobs=body.num_logprobs,
        **body.drawn(),
    )


async def _job(
    body: ResponsesBody, params: SamplingParams, plan: AnswerPlan, label: str, front: Front
) -> Job:
    """The engine's job for a request."""
    text = await front.prompts.render(
        body.messages(),
        chat_template_kwargs=with_thinking(body.chat_template_kwargs, body.effort, front),
        tools=plan.tools,
    )
    state = reasoning_state(text)
    (prompt,) = await front.prompts.read(
        [text],
        name="input",
        limit=_prompt_limit(body, front),
        add_special_tokens=False,
        cache_salt=body.cache_salt,
    )
    begin_is_given = "after_thinking" in (body.structured_outputs or {})
    has_calls = plan.has_grammar_of_calls(beside=params.structured_outputs is not None)
    params = with_budget(params, body.effort, state, front)
    return Job(
        prompt=prompt,
        params=guided(params, plan, state, begin_is_given=begin_is_given),
        label=label,
        priority=body.priority or 0,
        grammar_field="tools" if has_calls else body.grammar_field,
        answer=plan.format(state),
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
        "model": front.settings.model_name,
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


class _Pieces:
    """The pieces of an answer that the client wants to see.

    Args:
        shows_reasoning: whether reasoning is among them.
        logprobs: those of its text's tokens.
    """

    def __init__(self, *, shows_reasoning: bool, logprobs: ContentLogprobs) -> None:
        self.logprobs = logprobs
        self._shows_reasoning = shows_reasoning

    def of(self, completion: CompletionOutput) -> list[Piece]:
        """The events of the next output."""
        shows = self._shows_reasoning
        return [p for p in pieces_of(completion) if shows or not isinstance(p, Reasoning)]


def _finished(
    answer: ResponsesAnswer, output: RequestOutput, pieces: _Pieces, count: UsageCount
) -> ResponsesAnswer:
    count.add(0, output)
    (completion,) = output.outputs
    reason = completion.finish_reason
    scores = pieces.logprobs.of(completion)
    return whole_answer(answer, pieces.of(completion), reason, count.usage(), scores)


async def _events(
    outputs: Outputs, answer: ResponsesAnswer, pieces: _Pieces, count: UsageCount
) -> AsyncGenerator[bytes]:
    events = ResponseEvents(answer)
    for event in events.begin():
        yield event
    reason = None
    async for index, output in outputs:
        count.add(index, output)
        (completion,) = output.outputs
        reason = completion.finish_reason
        events.add_logprobs(pieces.logprobs.of(completion))
        for piece in pieces.of(completion):
            yield b"".join(events.add(piece))
    for event in events.end(reason, count.usage()):
        yield event


def _error_event(error: ApiError) -> bytes:
    details = error.body["error"]
    value = {"type": "error", **details, "code": details["code"] or details["type"]}
    return b"event: error\ndata: " + encode(value) + b"\n\n"
