"""`GET /` and the files that the page loads, under a policy that lets nothing else in."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from jaxinfer.server.openai.page.files import PAGE_PATHS, page_file
from jaxinfer.server.openai.route import ApiRoute

router = APIRouter(route_class=ApiRoute)

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asks again each time, and is told 304 while nothing changed
}


async def _send(request: Request) -> Response:
    file = page_file(request.scope["path"])
    headers = {**_HEADERS, "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


for _path in PAGE_PATHS:
    router.add_api_route(_path, _send, methods=["GET"], include_in_schema=False)
