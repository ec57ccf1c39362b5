"""The routes `/rerank` and `/score`: documents by relevance, and scores of pairs of texts."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.server.openai.answering.head import head
from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.answering.pooling import answer_task, read_task
from jaxinfer.server.openai.errors import client_errors
from jaxinfer.server.openai.front import front_of
from jaxinfer.server.openai.protocol.relevance import (
    RerankAnswer,
    RerankBody,
    RerankResult,
    ScoreAnswer,
    ScoreBody,
)
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.serving.pooling.pair_scores import pair_task
from jaxinfer.serving.pooling.reranking import rerank_task

router = APIRouter(route_class=ApiRoute)


@router.post("/rerank", response_model=None, responses={200: {"model": RerankAnswer}})
@router.post("/v1/rerank", response_model=None, responses={200: {"model": RerankAnswer}})
@router.post("/v2/rerank", response_model=None, responses={200: {"model": RerankAnswer}})
async def rerank(body: RerankBody, request: Request) -> Response:
    """Documents by their relevance to a query."""
    front = front_of(request)
    front.check_model(body.model)
    reader, texts, top_n = front.prompts.reader, body.texts, body.top_n or None
    classifier = front.engine.judge.classifier
    task = await read_task(
        lambda: rerank_task(body.query, texts, body.instruction, top_n, reader, classifier),
        body,
        len(body.query) * len(texts) + sum(map(len, texts)),
        front,
        {"documents": "documents"},
    )
    begin = head("list", "rerank", front)
    ranked, usage = await answer_task(task, body, begin["id"], front)
    results: list[RerankResult] = [
        {"index": each.index, "relevance_score": each.relevance_score} for each in ranked
    ]
    if body.return_documents is not False:
        for result, each in zip(results, ranked, strict=True):
            result["document"] = {"text": each.document}
    answer = {**begin, "results": results, "usage": usage}
    return await front.write(lambda: json_answer(answer, body.request_id), sum(map(len, texts)))


@router.post("/score", response_model=None, responses={200: {"model": ScoreAnswer}})
@router.post("/v1/score", response_model=None, responses={200: {"model": ScoreAnswer}})
async def score(body: ScoreBody, request: Request) -> Response:
    """Scores of pairs of texts."""
    front = front_of(request)
    front.check_model(body.model)
    reader, judge = front.prompts.reader, front.engine.judge
    with client_errors(()):
        by_vectors = judge.makes_vectors()
    firsts, seconds = (
        [text] if isinstance(text, str) else text for text in (body.text_1, body.text_2)
    )
    size = sum(map(len, seconds)) + sum(map(len, firsts)) * (
        len(seconds) if len(firsts) == 1 else 1
    )
    task = await read_task(
        lambda: pair_task(
            firsts,
            seconds,
            reader,
            by_vectors=by_vectors,
            classifier=judge.classifier,
            instruction=body.instruction,
            names=("text_1", "text_2"),
        ),
        body,
        size,
        front,
        {"text_2": "text_2"},
    )
    begin = head("list", "score", front)
    scores, usage = await answer_task(task, body, begin["id"], front)
    data = [{"index": i, "object": "score", "score": each.score} for i, each in enumerate(scores)]
    return json_answer({**begin, "data": data, "usage": usage}, body.request_id)
