"""The chat page's static files: a table of URL paths, made from the package once."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_STATIC = Path(__file__).with_name("static")
_NAMES = [each.relative_to(_STATIC).as_posix() for each in sorted(_STATIC.rglob("*.*"))]

PAGE_PATHS: Mapping[str, str] = {
    "/" if name == "index.html" else f"/page/{name}": name for name in _NAMES
}
"""The file of each URL path; nothing else is served, and no file path is built from a request."""


@dataclasses.dataclass(frozen=True)
class PageFile:
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


@functools.cache
def page_file(path: str) -> PageFile:
    """The file at a URL path; KeyError if no file has that path."""
    name = PAGE_PATHS[path]
    content = (_STATIC / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:32]
    return PageFile(content, _MEDIA_TYPES[Path(name).suffix], f'"{digest}"')
