"""Hooks of `mkdocs build`: a generated page, and text in place of links to files outside docs/."""

import logging
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = {"behaviours.md": ROOT / "tests" / "behaviours.md"}
"""Pages that are not files of docs/, and what `behaviours_page` makes them from."""
_PAGES = {source: DOCS / name for name, source in GENERATED.items()}
_ROW = re.compile(r"^\| (\w+) \| (.+) \| .+ \|$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]+)[^)\s]*\)")

# Below mkdocs' own logger, so that a warning ends a strict build.
logger = logging.getLogger("mkdocs.hooks.links")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Called by mkdocs with all pages that it found: adds the generated ones."""
    from mkdocs.structure.files import File

    for name, source in GENERATED.items():
        files.append(File.generated(config, name, content=behaviours_page(source.read_text())))
    return files


def behaviours_page(source: str) -> str:
    """The page for readers: each behaviour as a line of a list, without its tests.

    Args:
        source: the tables with the tests that hold each behaviour.
    """
    text = source.replace("| id | behaviour | held by |\n|---|---|---|\n", "")
    return _ROW.sub(r"- **\1** \2", text)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with every page, before it looks at links."""
    return without_outside_links(markdown, DOCS / page.file.src_uri)


def without_outside_links(markdown: str, page: Path) -> str:
    """A page's text, with links that leave docs/ replaced by their text.

    A link to what a page is generated from leads to that page. One that leads out of docs/ and to
    no file is a warning.

    Args:
        markdown: its text.
        page: its file, which links are relative to.
    """

    def replaced(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if target.is_relative_to(DOCS):
            return link[0]
        if target in _PAGES:
            return f"[{link[1]}]({os.path.relpath(_PAGES[target], page.parent)})"
        if not target.exists():
            logger.warning("%s links to %s, which is not there", page.relative_to(DOCS), link[2])
        return link[1]

    return _LINK.sub(replaced, markdown)
