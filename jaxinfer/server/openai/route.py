"""The base of every route: strict JSON in, JSON errors out, cancelled when a client disconnects."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.checks import did_you_mean
from jaxinfer.server.openai.disconnects import while_connected
from jaxinfer.server.openai.errors import ApiError, as_api_error, invalid
from jaxinfer.server.openai.json_body import check_media_type, decode
from jaxinfer.server.openai.protocol.base import Body, hint
from jaxinfer.server.openai.validation import from_validation


class ApiRoute(APIRoute):
    """A route whose handler is cancelled when its client disconnects.

    Starlette cancels streams only; any other answer would be computed without a reader.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, wrapped."""
        handler = super().get_route_handler()
        body = self.body_field.field_info.annotation if self.body_field else None
        is_required = self.body_field is not None and self.body_field.field_info.is_required()
        model = body if isinstance(body, type) and issubclass(body, BaseModel) else None
        parameters = [each.alias for each in self.dependant.query_params]

        async def handle(request: Request) -> Response:
            try:
                _check_parameters(request, parameters)
                checked = request
                if model and (is_required or await request.body()):
                    checked = await _with_json(request)
                return await while_connected(handler(checked), request.receive)
            except RequestValidationError as error:
                return _refusal(error, model).response(request.scope)
            except Exception as error:
                return as_api_error(error).response(request.scope)

        return handle


def _check_parameters(request: Request, known: list[str]) -> None:
    """Refuse unknown query parameters, on routes that have parameters; other routes ignore them."""
    for name in request.query_params if known else ():
        if name not in known:
            choices = ", ".join(known)
            raise invalid(f"unknown parameter {name[:100]!r}; this route has {choices}", name[:100])


class _JsonRequest(Request):
    """A request whose JSON has been decoded."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body
        self._json = value


async def _with_json(request: Request) -> Request:
    body = await request.body()
    check_media_type(request)
    return _JsonRequest(request, body, decode(body))


def _refusal(error: RequestValidationError, model: type[BaseModel] | None) -> ApiError:
    fields = list(model.model_fields) if model else None
    body = model if model and issubclass(model, Body) else None

    def explain(field: str, kind: str) -> str | None:
        instead = hint(field, body)
        if kind == "none_required" or (kind == "extra_forbidden" and instead):
            return f"{field}: {instead or 'not supported; leave it out'}"
        if kind == "extra_forbidden":
            also = did_you_mean(field, fields or ()) or "; docs/serving.md lists all"
            return f"unknown field {field[:100]!r}{also}"
        return None

    return from_validation(error, fields, explain)
