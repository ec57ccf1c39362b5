"""Probes and counts: `/health`, `/ready`, `/version`, `/load`, `/metrics`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer import __version__
from jaxinfer.errors import EngineRestartingError, JaxinferError
from jaxinfer.server.openai.answering.json_answer import json_answer
from jaxinfer.server.openai.errors import ApiError
from jaxinfer.server.openai.front import front_of
from jaxinfer.server.openai.protocol.answers import Load, Version
from jaxinfer.server.openai.route import ApiRoute

router = APIRouter(route_class=ApiRoute)


@router.get("/health", response_class=Response, responses={200: {"description": "It serves."}})
@router.get("/ready", response_class=Response, responses={200: {"description": "It serves."}})
async def health(request: Request) -> Response:
    """True if requests are taken; needs no key. A server that listens has loaded its model."""
    try:
        await front_of(request).engine.check_health()
    except EngineRestartingError:
        raise  # it says when to come back
    except (JaxinferError, RuntimeError):
        raise ApiError(503, "the engine takes no requests", code="engine_unavailable") from None
    return Response()


@router.get("/version", response_model=None, responses={200: {"model": Version}})
async def version() -> Response:
    """The server's version."""
    return json_answer({"version": __version__})


@router.get("/load", response_model=None, responses={200: {"model": Load}})
async def load(request: Request) -> Response:
    """The number of requests that this front end is serving."""
    return json_answer({"server_load": front_of(request).num_running})


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Counts of the engine and of all front ends, in Prometheus' text format.

    During a long step, such as one that compiles, the engine's last known counts are shown.
    """
    front = front_of(request)
    text = front.telemetry.render(await front.engine_metrics.get())
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
