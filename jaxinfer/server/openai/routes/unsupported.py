"""Routes for other kinds of models, such as of speech: a clear error, not a 404."""

from fastapi import APIRouter

from jaxinfer.server.openai.errors import ApiError
from jaxinfer.server.openai.route import ApiRoute

router = APIRouter(route_class=ApiRoute)

_MISSING = {
    "pooling head": ("/pooling",),
    "speech or images": ("/v1/audio/transcriptions", "/v1/audio/speech", "/v1/images/generations"),
}


def _add(path: str, missing: str) -> None:
    name = path.strip("/").replace("/", "_")

    async def refuse() -> None:
        raise ApiError(501, f"this model has no {missing}; it completes text", route=path)

    refuse.__doc__ = f"Always 501: the model has no {missing}."
    router.add_api_route(path, refuse, methods=["POST"], name=name, status_code=501)


for _missing, _paths in _MISSING.items():
    for _path in _paths:
        _add(_path, _missing)
