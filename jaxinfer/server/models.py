"""The routes `/v1/models`: the served names, in the form of the API that is asked."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.server.anthropic.answer import MessageError, ModelInfo, ModelPage
from jaxinfer.server.anthropic.errors import ERRORS, STATUSES
from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.errors import ErrorAnswer
from jaxinfer.server.openai.front import Front, front_of
from jaxinfer.server.openai.protocol.answers import ModelCard, ModelList
from jaxinfer.server.openai.route import ApiRoute

router = APIRouter(route_class=ApiRoute)

_Version = Annotated[
    str | None, Header(alias="anthropic-version", description="Sent by Anthropic's clients alone.")
]
_ERRORS: dict[int | str, dict[str, Any]] = {
    **ERRORS,
    **{status: {"model": ErrorAnswer | MessageError} for status in STATUSES},
}


@router.get(
    "/v1/models",
    response_model=None,
    responses={200: {"model": ModelList | ModelPage}, **_ERRORS},
)
async def models(request: Request, version: _Version = None) -> Response:
    """The names under which the model is served; one page has all."""
    front = front_of(request)
    names = [*front.settings.served_model_names, *front.adapters]
    if version is None:
        return json_answer(ModelList(object="list", data=[_card(name, front) for name in names]))
    infos = [_info(name, front) for name in names]
    page = ModelPage(data=infos, has_more=False, first_id=names[0], last_id=names[-1])
    return json_answer(page)


@router.get(
    "/v1/models/{name:path}",
    response_model=None,
    responses={200: {"model": ModelCard | ModelInfo}, **_ERRORS},
)
async def model(name: str, request: Request, version: _Version = None) -> Response:
    """One served name of the model."""
    front = front_of(request)
    front.check_model(name, adapts=True)
    return json_answer(_card(name, front) if version is None else _info(name, front))


def _card(name: str, front: Front) -> ModelCard:
    return {
        "id": name,
        "object": "model",
        "created": front.started,
        "owned_by": "jaxinfer",
        "root": front.adapter_of(name) or front.settings.model_name,
        "parent": front.settings.model_name if front.adapter_of(name) else None,
        "max_model_len": front.engine.max_model_len,
    }


def _info(name: str, front: Front) -> ModelInfo:
    most = front.engine.max_model_len - 1  # the prompt leaves room for a token, and has one itself
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(front.started, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": most,
        "max_tokens": most,
    }
