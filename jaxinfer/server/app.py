"""The server's application: OpenAI's and Anthropic's routes on one engine."""

import contextlib
from collections.abc import AsyncGenerator
from types import ModuleType
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer import __version__
from jaxinfer.server import models
from jaxinfer.server.anthropic import routes as messages
from jaxinfer.server.anthropic.errors import PREFIX, AnthropicErrors
from jaxinfer.server.openai.engine_client import EngineClient
from jaxinfer.server.openai.errors import ApiError, ErrorAnswer, as_api_error
from jaxinfer.server.openai.front import Front
from jaxinfer.server.openai.middleware.auth import PROBES, Auth
from jaxinfer.server.openai.middleware.body_limit import BodyLimit
from jaxinfer.server.openai.middleware.head import Head
from jaxinfer.server.openai.middleware.hosts import AllowedHosts
from jaxinfer.server.openai.middleware.request_id import RequestId
from jaxinfer.server.openai.page import routes as page
from jaxinfer.server.openai.page.files import PAGE_PATHS
from jaxinfer.server.openai.route import ApiRoute
from jaxinfer.server.openai.routes import (
    admin,
    chat,
    completions,
    decisions,
    embeddings,
    health,
    relevance,
    responses,
    tokenization,
    unsupported,
)
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.telemetry.telemetry import Telemetry

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": why}
    for status, why in {
        400: "The request can't be run as it is.",
        401: "No valid key.",
        403: "The server does not answer for this host.",
        404: "No such route or model.",
        405: "The route has other methods.",
        408: "The body did not come in time.",
        413: "The body is too large.",
        415: "The body is not declared as JSON.",
        500: "The engine failed.",
        501: "This model or server does not have it.",
        503: "Too many requests wait, or the engine has ended.",
    }.items()
}
"""The errors that openapi.json lists for every route."""


def create_app(
    engine: EngineClient, settings: ServerSettings, *, telemetry: Telemetry | None = None
) -> FastAPI:
    """An ASGI application for one engine, which it neither starts nor ends, and its `/metrics`."""
    front = Front(engine, settings, telemetry or Telemetry(settings.model_name))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        yield
        front.prompts.close()

    app = FastAPI(
        title="jaxinfer",
        version=__version__,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # redirects would repeat the Host header
        lifespan=lifespan,
        responses=_ERRORS,
    )
    app.state.front = front
    app.router.route_class = ApiRoute
    generating = [completions, chat, responses, messages, embeddings, relevance, decisions]
    for each in [health, models, *generating, tokenization, unsupported]:
        app.include_router(each.router)
    if settings.page:
        app.include_router(page.router)
    if settings.enable_tokenizer_info:
        app.include_router(tokenization.info_router)
    if settings.enable_admin:
        app.include_router(admin.router)
    app.add_exception_handler(HTTPException, _answer)
    app.add_exception_handler(ApiError, _answer)
    app.add_exception_handler(Exception, _answer)
    # The last one is the outermost.
    app.add_middleware(
        BodyLimit,
        max_bytes={
            **dict.fromkeys(_paths(*generating), settings.max_body_bytes),
            **dict.fromkeys(_paths(tokenization), settings.max_tokenize_bytes),
        },
        max_other_bytes=settings.max_other_bytes,
        max_unfinished_bytes=settings.max_unfinished_bytes,
        seconds=settings.body_seconds,
    )
    open_paths = PROBES.union(PAGE_PATHS if settings.page else ())
    app.add_middleware(Auth, keys=settings.api_keys, open_paths=open_paths)
    if "*" not in settings.allowed_hosts:
        app.add_middleware(AllowedHosts, names=settings.allowed_hosts)
    app.add_middleware(RequestId)
    app.add_middleware(AnthropicErrors)
    app.add_middleware(Head)
    _document(app, has_keys=bool(settings.api_keys))
    return app


def _paths(*modules: ModuleType) -> list[str]:
    """The URL paths of the modules' routes."""
    routes = [route for module in modules for route in module.router.routes]
    return [route.path for route in routes if isinstance(route, APIRoute)]


_FLAGS_OF_ROUTES = {
    **dict.fromkeys(_paths(admin), "--enable-admin"),
    "/tokenizer_info": "--enable-tokenizer-info",
}


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:
        path = request.scope["path"]
        hint = "there is no such route; /openapi.json lists all"
        if (flag := _FLAGS_OF_ROUTES.get(path)) is not None:  # else it would have been found
            hint = f"this route is off; `jaxinfer serve {flag}` turns it on"
        error = ApiError(404, hint, route=path)
    elif isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "other methods")
        hint = f"{request.method[:20]} is not allowed here; use {allowed}"
        error = ApiError(405, hint, route=request.scope["path"], headers=error.headers)
    return as_api_error(error).response(request.scope)


def _document(app: FastAPI, *, has_keys: bool) -> None:
    """Correct openapi.json: errors are 400 and never 422, and routes with a key say so."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        schema = plain()
        components = schema.setdefault("components", {})
        for name in ("HTTPValidationError", "ValidationError"):
            components.get("schemas", {}).pop(name, None)
        if has_keys:
            components["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                operation["responses"].pop("422", None)
                if path.startswith(PREFIX):
                    operation["responses"].pop("503", None)  # it is 529 there
                if has_keys and path not in PROBES:
                    operation["security"] = [{"key": []}, {"x-api-key": []}]
        return schema

    app.openapi = openapi  # pyright: ignore[reportAttributeAccessIssue]
