"""How every route runs: strict JSON in, JSON errors out, and no work for a client that has gone."""

import difflib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.serving.openai.disconnects import while_connected
from jaxinfer.serving.openai.errors import ApiError, as_api_error, from_validation, invalid
from jaxinfer.serving.openai.json_body import check_media_type, decode
from jaxinfer.serving.openai.protocol.base import hint


class ApiRoute(APIRoute):
    """A route whose handler is cancelled when its client disconnects.

    Starlette cancels streams only; any other answer would be computed without a reader.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, wrapped."""
        handler = super().get_route_handler()
        body = self.body_field.field_info.annotation if self.body_field else None
        model = body if isinstance(body, type) and issubclass(body, BaseModel) else None
        parameters = [parameter.alias for parameter in self.dependant.query_params]

        async def handle(request: Request) -> Response:
            try:
                if parameters:  # other routes have no use for any, so that a probe may add some
                    _check_query(request, parameters)
                checked = await _with_json(request) if model else request
                return await while_connected(handler(checked), request.receive)
            except RequestValidationError as error:
                return _refusal(error, model).response()
            except Exception as error:
                return as_api_error(error).response()

        return handle


class _JsonRequest(Request):
    """A request whose JSON has been decoded."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._body = body
        self._json = value


async def _with_json(request: Request) -> Request:
    body = await request.body()
    check_media_type(request)
    return _JsonRequest(request, body, decode(body, request.app.state.max_nesting))


def _check_query(request: Request, parameters: list[str]) -> None:
    for name in request.query_params:
        if name not in parameters:
            raise invalid(_unknown("parameter", name, parameters), name[:100])


def _unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name[:100], known, n=1)
    also = f"; did you mean {near[0]!r}?" if near else "; docs/serving.md lists all"
    return f"unknown {what} {name[:100]!r}{also}"


def _refusal(error: RequestValidationError, model: type[BaseModel] | None) -> ApiError:
    fields = list(model.model_fields) if model else None

    def explain(field: str, kind: str) -> str | None:
        if kind == "extra_forbidden":
            return _unknown("field", field, fields or ())
        return hint(field) if kind == "none_required" else None

    return from_validation(error, fields, explain)
