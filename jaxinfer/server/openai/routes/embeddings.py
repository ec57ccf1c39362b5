"""The route `POST /v1/embeddings`: texts as vectors."""

import base64

import numpy as np
from fastapi import APIRouter
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.outputs import RequestOutput
from jaxinfer.server.openai.answering.head import head
from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.answering.pooling import pooled, read_inputs, usage_of
from jaxinfer.server.openai.errors import client_errors, invalid
from jaxinfer.server.openai.front import Front, front_of
from jaxinfer.server.openai.protocol.embedding import (
    Embedding,
    EmbeddingAnswer,
    EmbeddingBody,
)
from jaxinfer.server.openai.protocol.prompts import TextOrTokens
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.sse import encode
from jaxinfer.serving.pooling.embedding import embedding_output

router = APIRouter(route_class=ApiRoute)

_FIELDS = ("dimensions", "prompt_name")
_CHARS_OF_A_NUMBER = 22


@router.post("/v1/embeddings", response_model=None, responses={200: {"model": EmbeddingAnswer}})
async def embed(body: EmbeddingBody, request: Request) -> Response:
    """Texts as vectors."""
    front = front_of(request)
    front.check_model(body.model)
    given = _inputs(body, front)
    begin = head("list", "embd", front)
    special = body.add_special_tokens
    prompts = await read_inputs(given, body, front, name="input", add_special_tokens=special)
    outputs = await pooled(prompts, body, begin["id"], front)

    def answer() -> Response:
        data = [Raw(encode(_embedding(body, i, output))) for i, output in enumerate(outputs)]
        return json_answer({**begin, "data": data, "usage": usage_of(outputs)}, body.request_id)

    numbers = sum(len(output.embedding or ()) for output in outputs)
    return await front.write(answer, numbers * _CHARS_OF_A_NUMBER)


def _inputs(body: EmbeddingBody, front: Front) -> list[TextOrTokens]:
    """The inputs behind the prompt that the request names."""
    with client_errors(_FIELDS):
        model = front.engine.embedding_model
        model.check_dimensions(body.dimensions)
        prefix = "" if body.prompt_name is None else model.prompt(body.prompt_name)
    if body.prompt_name is None:
        return body.prompts
    texts = [each for each in body.prompts if isinstance(each, str)]
    if len(texts) < len(body.prompts):
        raise invalid("prompt_name goes in front of texts; input has token ids", "prompt_name")
    return [prefix + text for text in texts]


def _embedding(body: EmbeddingBody, index: int, output: RequestOutput) -> Embedding:
    normalize = body.normalize is not False
    vector = embedding_output(output, normalize=normalize, dimensions=body.dimensions).embedding
    if body.encoding_format == "base64":
        written = base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode()
    else:
        written = vector.tolist()
    return {"object": "embedding", "index": index, "embedding": written}
