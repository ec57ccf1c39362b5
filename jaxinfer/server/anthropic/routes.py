"""The routes `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import CompletionOutput, Piece
from jaxinfer.sampling_params import RequestOutputKind, SamplingParams
from jaxinfer.server.anthropic.answer import MessageAnswer, TokenCount
from jaxinfer.server.anthropic.body import MessagesBody, PromptBody
from jaxinfer.server.anthropic.errors import ERRORS, error_event
from jaxinfer.server.anthropic.events import PING, MessageEvents, whole_answer
from jaxinfer.server.openai.answering.conversation import conversation_job, conversation_text
from jaxinfer.server.openai.answering.head import new_id
from jaxinfer.server.openai.answering.json_answer import id_header, json_answer
from jaxinfer.server.openai.answering.pieces import shown_pieces
from jaxinfer.server.openai.answering.plan import AnswerPlan, plan_answer
from jaxinfer.server.openai.answering.usage import UsageCount
from jaxinfer.server.openai.errors import ApiError, client_errors, invalid
from jaxinfer.server.openai.front import Front, Job, Outputs, finals, front_of
from jaxinfer.server.openai.merging import BEGIN_SECONDS, begun
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.sse import EventStream

router = APIRouter(route_class=ApiRoute)

_NAMES = {"stop": "stop_sequences"}


@router.post(
    "/v1/messages",
    response_model=None,
    responses={200: {"model": MessageAnswer, "content": {"text/event-stream": {}}}, **ERRORS},
)
async def create_message(body: MessagesBody, request: Request) -> Response:
    """Answer a conversation, as Anthropic's API does."""
    front = front_of(request)
    front.check_model(body.model, adapts=True)
    body.check_together()
    plan = _plan(body, front)
    with client_errors(MessagesBody.model_fields, lambda word: _NAMES.get(word, word)):
        params = _params(body, front)
    turns = body.turns()
    continued = _continued(turns)
    job = await conversation_job(
        body,
        turns,
        params,
        plan,
        new_id("msg"),
        front,
        field="messages",
        thinking=body.thinking_wish,
        limit=None,
        final_message=continued,
        continue_final_message=continued is not None,
    )
    answer = _begun_answer(job, front)
    is_shown = body.thinking is None or body.thinking.display != "omitted"
    pieces = functools.partial(shown_pieces, shows_reasoning=is_shown)
    count = UsageCount(has_reasoning=plan.reasoning_parser is not None)
    outputs = await front.start([job])
    if body.stream:
        outputs = await begun(outputs, BEGIN_SECONDS)
        return EventStream(
            _events(outputs, answer, pieces, count),
            outputs,
            keep_alive_seconds=front.settings.keep_alive_seconds,
            headers=id_header(body.request_id),
            error_event=error_event,
            keep_alive=PING,
        )
    (output,) = await finals(outputs)
    count.add(0, output)
    (completion,) = output.outputs
    _check_end(completion)
    reason, stopped_by = completion.finish_reason, completion.stop_reason
    whole = whole_answer(answer, pieces(completion), reason, stopped_by, count.usage())
    return json_answer(whole, body.request_id)


@router.post(
    "/v1/messages/count_tokens",
    response_model=None,
    responses={200: {"model": TokenCount}, **ERRORS},
)
async def count_tokens(body: PromptBody, request: Request) -> Response:
    """The number of tokens of a prompt, also of one that is longer than the model takes."""
    front = front_of(request)
    front.check_model(body.model, adapts=True)
    body.check_prompt()
    turns = body.turns()
    text = await conversation_text(
        turns,
        front,
        body.thinking_wish,
        body.chat_template_kwargs,
        tools=_plan(body, front).tools,
        continue_final_message=_continued(turns) is not None,
    )
    tokenizer = front.prompts.tokenizer
    token_ids = await front.prompts.on_thread(
        lambda: tokenizer.encode(text, add_special_tokens=False), len(text), "messages"
    )
    return json_answer(TokenCount(input_tokens=len(token_ids)))


def _plan(body: PromptBody, front: Front) -> AnswerPlan:
    return plan_answer(front, body.tools or (), body.choice, body.parallel)


def _params(body: MessagesBody, front: Front) -> SamplingParams:
    stop = {} if body.stop_sequences is None else {"stop": body.stop_sequences}
    return front.engine.get_default_sampling_params().clone(
        max_tokens=body.max_tokens,
        output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
        structured_outputs=body.grammar(),
        **stop,
        **body.drawn(),
    )


def _continued(turns: list[dict[str, Any]]) -> str | None:
    """The text that the answer continues, where the last turn is the assistant's."""
    last = turns[-1]
    if last["role"] != "assistant":
        return None
    if last.get("tool_calls"):
        raise invalid("messages: the last one has calls; send their tool_result", "messages")
    if not last["content"]:
        raise invalid("messages: the last one has no text to continue", "messages")
    return last["content"]


def _begun_answer(job: Job, front: Front) -> MessageAnswer:
    """The answer before its first token; what the prefix cache had is not known yet."""
    return {
        "id": job.label,
        "type": "message",
        "role": "assistant",
        "model": job.adapter or front.settings.model_name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(job.prompt.token_ids),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        },
    }


def _check_end(completion: CompletionOutput) -> None:
    """Refuse an answer that the server itself has ended: no `stop_reason` says so."""
    if completion.finish_reason == "abort":
        raise ApiError(503, "the request was ended before its answer", code="request_aborted")


async def _events(
    outputs: Outputs,
    answer: MessageAnswer,
    pieces: Callable[[CompletionOutput], Sequence[Piece]],
    count: UsageCount,
) -> AsyncGenerator[bytes]:
    events = MessageEvents(answer)
    for event in events.begin():
        yield event
    reason = stopped_by = None
    async for index, output in outputs:
        count.add(index, output)
        (completion,) = output.outputs
        _check_end(completion)
        reason, stopped_by = completion.finish_reason, completion.stop_reason
        yield b"".join(event for piece in pieces(completion) for event in events.add(piece))
    yield b"".join(events.end(reason, stopped_by, count.usage()))
