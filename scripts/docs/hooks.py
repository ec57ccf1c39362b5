"""Hooks of `mkdocs build`: links from docs/ to files outside of it become text."""

import logging
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]+)[^)\s]*\)")

# Below mkdocs' own logger, so that a warning ends a strict build.
logger = logging.getLogger("mkdocs.hooks.links")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with every page, before it looks at links."""
    return without_outside_links(markdown, DOCS / page.file.src_uri)


def without_outside_links(markdown: str, page: Path) -> str:
    """A page's text, with links that leave docs/ replaced by their text.

    A link that leads out of docs/ and to no file is a warning.

    Args:
        markdown: its text.
        page: its file, which links are relative to.
    """

    def replaced(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if not target.exists():
            logger.warning("%s links to %s, which is not there", page.relative_to(DOCS), link[2])
        return link[1]

    return _LINK.sub(replaced, markdown)
