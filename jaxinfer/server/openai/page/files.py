"""The chat page's static files: a fixed table of URL paths, read from the package once."""

import dataclasses
import functools
import hashlib
import importlib.resources
from collections.abc import Mapping
from pathlib import PurePath

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_NAMES = (
    "style.css",
    "theme.js",
    "main.js",
    "server/api.js",
    "server/events.js",
    "server/key.js",
    "chat/chat.css",
    "chat/chat.js",
    "chat/bubble.js",
    "chat/answer.js",
    "chat/formatted.js",
    "chat/markdown/markdown.css",
    "chat/markdown/markdown.js",
    "chat/markdown/blocks.js",
    "chat/markdown/leaves.js",
    "chat/markdown/inlines.js",
    "chat/markdown/passage.js",
    "chat/thinking.js",
    "chat/tokens.js",
    "chat/alternatives.js",
    "chat/tool-calls.js",
    "chat/statistics.js",
    "chat/settings.js",
    "chat/announcer.js",
)

PAGE_PATHS: Mapping[str, str] = {"/": "index.html"} | {f"/page/{name}": name for name in _NAMES}
"""The file of each URL path; nothing else is served, and no file path is built from a request."""


@dataclasses.dataclass(frozen=True)
class PageFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


@functools.cache
def page_file(path: str) -> PageFile:
    """The file at a URL path.

    Raises:
        KeyError: no file has that path.
    """
    name = PAGE_PATHS[path]
    folder = importlib.resources.files("jaxinfer.server.openai.page") / "static"
    content = (folder / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return PageFile(content, _MEDIA_TYPES[PurePath(name).suffix], f'"{digest}"')
