"""Writes the tables and plots of docs/performance.md from the records in benchmarks/results/.

python scripts/performance_tables.py           # rewrite them (changed plots need matplotlib)
python scripts/performance_tables.py --check   # status 1 if they are not up to date
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from scripts.figures.plots import PLOTS, is_current, plot_lines, update_plot
from scripts.figures.results import ROOT, load_results
from scripts.figures.tables import TABLES

PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
Record = dict[str, Any]

PARTS: dict[str, Callable[[list[Record]], list[str]]] = {
    **{f"table {name}": make for name, make in TABLES.items()},
    **{f"plot {name}": functools.partial(plot_lines, name) for name in PLOTS},
}
"""What stands on the page, by its mark."""


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check the page and its plots; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    arguments = parser.parse_args(argv)
    records, page = load_results(), PAGE.read_text()
    fresh = fill_page(page, records)
    if arguments.check:
        current = [is_current(name, records, FIGURES) for name in PLOTS]
        return int(fresh != page or not all(current))
    for name in PLOTS:
        update_plot(name, records, FIGURES)
    PAGE.write_text(fresh)
    return 0


def fill_page(page: str, records: list[Record]) -> str:
    """Replace what stands between `<!-- MARK -->` and `<!-- end -->` for every part.

    Raises:
        ValueError: the page lacks a part's marks.
    """
    for mark, make in PARTS.items():
        begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
        before, found, rest = page.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"docs/performance.md has no {mark}: write {begin}{end}")
        page = before + begin + "\n".join([*make(records), ""]) + end + after
    return page


if __name__ == "__main__":
    sys.exit(main())
