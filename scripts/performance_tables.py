"""Writes the tables and plots of the docs from the records in benchmarks/results/.

python scripts/performance_tables.py           # rewrite them (changed plots need matplotlib)
python scripts/performance_tables.py --check   # status 1 if they are not up to date
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from scripts.docs.drafts import DRAFT_TABLES
from scripts.docs.embeddings import EMBEDDING_TABLES
from scripts.docs.plots import PLOTS, is_current, plot_lines, update_plot
from scripts.docs.profiles import profile_lines, profile_pictures
from scripts.docs.quantization import QUANTIZATION_TABLES
from scripts.docs.research import RESEARCH_TABLES
from scripts.docs.tables import TABLES
from scripts.measurements.results import ROOT, load_results

DOCS = ROOT / "docs"
FIGURES = ROOT / "docs" / "figures"
Record = dict[str, Any]

_TABLES = TABLES | DRAFT_TABLES | EMBEDDING_TABLES | QUANTIZATION_TABLES | RESEARCH_TABLES

PARTS: dict[str, Callable[[list[Record]], list[str]]] = {
    **{f"table {name}": make for name, make in _TABLES.items()},
    **{f"plot {name}": functools.partial(plot_lines, name) for name in PLOTS},
    **{f"profile {where}": functools.partial(profile_lines, where) for where in ("cpu", "gpu")},
}
"""Makers of the pages' tables and plots, by their marks."""


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check the pages and their plots; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    arguments = parser.parse_args(argv)
    records = load_results()
    pages = {path: path.read_text() for path in _pages()}
    check_marks(pages.values())
    fresh = {path: fill_page(page, records) for path, page in pages.items()}
    pictures = {FIGURES / name: text for name, text in profile_pictures(records).items()}
    if arguments.check:
        current = [is_current(name, records, FIGURES) for name in PLOTS]
        current += [path.is_file() and path.read_text() == text for path, text in pictures.items()]
        return int(fresh != pages or not all(current))
    for name in PLOTS:
        update_plot(name, records, FIGURES)
    for path, page in {**fresh, **pictures}.items():
        path.write_text(page)
    return 0


def fill_page(page: str, records: list[Record]) -> str:
    """Replace the text between ``<!-- MARK -->`` and ``<!-- end -->`` for each mark of a page.

    Raises:
        ValueError: a mark has no end.
    """
    for mark, make in PARTS.items():
        begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        if not found:
            continue
        _, closed, after = rest.partition(end)
        if not closed:
            raise ValueError(f"{mark} has no end: write {begin}{end}")
        page = before + begin + "\n".join([*make(records), ""]) + end + after
    return page


def check_marks(pages: Iterable[str]) -> None:
    """See that each part has one place.

    Raises:
        ValueError: a part's mark is on no page, or on several.
    """
    text = "".join(pages)
    for mark in PARTS:
        if (count := text.count(f"<!-- {mark} -->")) != 1:
            raise ValueError(f"{count} places in the docs for {mark}; write <!-- {mark} --> in one")


def _pages() -> list[Path]:
    """The pages that hold marks."""
    names = ("performance", "profiling", "memory", "quantization", "adapters", "research")
    pages = [*(DOCS / f"{name}.md" for name in names), *DOCS.glob("measurements/*.md")]
    pages.append(DOCS.parent / "README.md")
    return sorted(page for page in pages if page.is_file())


if __name__ == "__main__":
    sys.exit(main())
