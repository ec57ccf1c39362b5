"""The routes `/v1/decisions` and `/classify`: probabilities of labels after prompts."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.decisions import Decision
from jaxinfer.server.openai.answering.head import head
from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.answering.pooling import answer_task, read_inputs, read_task
from jaxinfer.server.openai.errors import ApiError, invalid
from jaxinfer.server.openai.front import Front, front_of
from jaxinfer.server.openai.protocol.decision import (
    Classification,
    ClassifyAnswer,
    ClassifyBody,
    DecisionAnswer,
    DecisionBody,
    DecisionEntry,
)
from jaxinfer.server.openai.protocol.pooling import PoolingUsage
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.serving.pooling.classification import classify_task
from jaxinfer.serving.pooling.decisions import decision_task
from jaxinfer.serving.pooling.task import PoolingTask
from jaxinfer.serving.requests.new_request import Prompt

router = APIRouter(route_class=ApiRoute)


@router.post("/v1/decisions", response_model=None, responses={200: {"model": DecisionAnswer}})
async def decide(body: DecisionBody, request: Request) -> Response:
    """Probabilities of labels after prompts, or after conversations."""
    front = front_of(request)
    front.check_model(body.model)
    body.check_together()
    begin = head("list", "decision", front)
    prompts = await (_inputs(body, "prompt", front) if body.prompts else _chats(body, front))
    decisions, usage = await _run(decision_task, prompts, body, begin, front)
    data: list[DecisionEntry] = [
        {
            "index": i,
            "object": "decision",
            "label": each.label,
            "probabilities": each.probabilities,
            "logits": each.logits,
        }
        for i, each in enumerate(decisions)
    ]
    return json_answer({**begin, "data": data, "usage": usage}, body.request_id)


@router.post("/classify", response_model=None, responses={200: {"model": ClassifyAnswer}})
@router.post("/v1/classify", response_model=None, responses={200: {"model": ClassifyAnswer}})
async def classify(body: ClassifyBody, request: Request) -> Response:
    """The classes of prompts."""
    front = front_of(request)
    front.check_model(body.model)
    begin = head("list", "classify", front)
    prompts = await _inputs(body, "input", front)
    decisions, usage = await _run(classify_task, prompts, body, begin, front)
    data: list[Classification] = [
        {
            "index": i,
            "label": each.label,
            "probs": list(each.probabilities.values()),
            "num_classes": len(each.probabilities),
        }
        for i, each in enumerate(decisions)
    ]
    return json_answer({**begin, "data": data, "usage": usage}, body.request_id)


async def _inputs(body: DecisionBody | ClassifyBody, name: str, front: Front) -> list[Prompt]:
    """The prompts of a request, which stand in the field `name`."""
    special = body.add_special_tokens
    return await read_inputs(body.prompts, body, front, name=name, add_special_tokens=special)


async def _chats(body: DecisionBody, front: Front) -> list[Prompt]:
    """The prompts of a request's conversations, as `/v1/chat/completions` would render them."""
    texts = []
    for i, messages in enumerate(body.conversations):
        try:
            text = await front.prompts.render(
                [message.for_template() for message in messages],
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                chat_template_kwargs=body.chat_template_kwargs,
                tools=[tool.function.for_template() for tool in body.tools or ()],
            )
        except ApiError as error:
            if len(body.conversations) == 1 or error.param != "messages":
                raise
            raise invalid(f"messages[{i}]: {error.message}", "messages") from None
        texts.append(text)
    # The template has written special tokens already.
    special = bool(body.add_special_tokens)
    return await read_inputs(texts, body, front, name="messages", add_special_tokens=special)


async def _run(
    make: Callable[..., PoolingTask[list[Decision]]],
    prompts: list[Prompt],
    body: DecisionBody | ClassifyBody,
    begin: dict[str, Any],
    front: Front,
) -> tuple[list[Decision], PoolingUsage]:
    """The decisions of a request, by the task made of its prompts."""
    reader, classifier = front.prompts.reader, front.engine.judge.classifier
    task = await read_task(
        lambda: make(prompts, body.labels, reader, classifier),
        body,
        sum(map(len, body.labels or ())),
        front,
        {"label": "labels"},
    )
    return await answer_task(task, body, begin["id"], front)
