"""The list of promised behaviours names tests that exist, and has each of its rows once."""

import ast
import re
from collections import Counter
from pathlib import Path

from scripts.docs.hooks import behaviours_page

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "tests" / "behaviours.md").read_text()
ROWS = {
    "A": range(1, 23),
    "B": range(1, 14),
    "E": (14, 15, 16),
    "F": range(1, 8),
    "N": range(1, 8),
}
_ROW = re.compile(r"^\| (\w+) \| .+ \| (.+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _rows() -> list[tuple[str, str]]:
    """Each row's id and its last cell, but for the headings."""
    return [row for row in _ROW.findall(PAGE) if row[0] != "id"]


def _tests_in(file: Path) -> set[str]:
    """Names of the test functions and methods that a file defines."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(file.read_text()))
    return {n.name for n in nodes if isinstance(n, functions) and n.name.startswith("test_")}


def test_every_behaviour_has_one_row():
    expected = [f"{group}{i}" for group, numbers in ROWS.items() for i in numbers]
    assert Counter(row for row, _ in _rows()) == Counter(expected)


def test_every_row_names_tests_alone():
    for row, cell in _rows():
        parts = cell.split("<br>")
        assert all(_TEST.fullmatch(part) for part in parts), row
        assert len(set(parts)) == len(parts), row


def test_every_test_on_the_page_exists():
    missing = [
        f"{file}::{name}"
        for file, name in _TEST.findall(PAGE)
        if not (ROOT / file).exists() or name not in _tests_in(ROOT / file)
    ]
    assert missing == []


def test_the_published_page_has_every_behaviour_without_its_tests():
    page = behaviours_page(PAGE)
    listed = re.findall(r"^- \*\*(\w+)\*\* ", page, re.MULTILINE)
    assert listed == [row for row, _ in _rows()]
    assert "::" not in page
    assert "|---" not in page
