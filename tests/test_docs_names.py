"""Pages that explain the code name only files, functions, classes and members that are there."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / "reading.md", *sorted((ROOT / "docs" / "extending").glob("*.md"))]
_PATH = re.compile(r"[\w./*-]+/[\w./*-]*|[\w.-]+\.(?:py|md|toml|yml)")
_FILE = re.compile(rf"{_PATH.pattern}|\w+\.json")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


def _backticked(page: Path) -> list[str]:
    """What stands in backticks, but for blocks of code."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", prose)


@functools.cache
def _definitions() -> frozenset[str]:
    """Every name that the code defines; members also as `Class.member` or `module.member`."""
    folders = ("jaxinfer", "scripts", "tests")
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return frozenset().union(*map(_definitions_in, files))


@functools.cache
def _definitions_in(file: Path) -> frozenset[str]:
    names: set[str] = set()
    _collect(ast.parse(file.read_text()), file.stem, names)
    return frozenset(names)


def _collect(node: ast.AST, owner: str, names: set[str], *, is_local: bool = False) -> None:
    """Add what is defined below a node; not a function's own variables."""
    for child in ast.iter_child_nodes(node):
        inner, hides = owner, is_local
        match child:
            case ast.ClassDef(name=name):
                names.add(name)
                inner, hides = name, False
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names |= {name, f"{owner}.{name}"}
                hides = True
            case ast.Name(id=name, ctx=ast.Store()) if not is_local:
                names |= {name, f"{owner}.{name}"}
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names |= {name, f"{owner}.{name}"}
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case _:
                pass
        _collect(child, inner, names, is_local=hides)


def _exists(path: str) -> bool:
    found = ROOT.glob(path) if "*" in path else [ROOT / path]
    return any(each.exists() for each in found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_exists(page):
    paths = [text for text in _backticked(page) if _PATH.fullmatch(text)]
    assert [path for path in paths if not _exists(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_is_defined(page):
    names = [t for t in _backticked(page) if _NAME.fullmatch(t) and not _FILE.fullmatch(t)]
    known = _definitions()
    # "jaxinfer.LLM" is `LLM`; of what is not ours, JAX's names stand in full.
    wanted = {name.removeprefix("jaxinfer.") for name in names if not name.startswith("jax.")}
    assert sorted(wanted - known - {"None", "True", "False"}) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_are_in_the_files_that_stand_beside_them(page):
    text = page.read_text()
    pairs = re.findall(r"`([\w.]+)`\s+(?:in\s+|\()`([\w/]+\.py)`", text)
    turned = re.findall(r"\*\*`([\w/]+\.py)`\*\*,\s+`([\w.]+)`", text)
    pairs += [(name, file) for file, name in turned]
    wrong = [(name, file) for name, file in pairs if name not in _definitions_in(ROOT / file)]
    assert wrong == []


def test_the_figure_names_what_is_there():
    page = (ROOT / "docs" / "reading.md").read_text()
    (figure,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    names = set(re.findall(r"\b[A-Z]\w+\.\w+|\b[a-z]+_[a-z_]+\b", figure))
    assert len(names) > 12
    assert names <= _definitions()


@functools.cache
def _files() -> frozenset[str]:
    folders = ("jaxinfer", "scripts", "examples", "tests", "docs")
    return frozenset(
        f"/{file.relative_to(ROOT)}" for folder in folders for file in (ROOT / folder).rglob("*.*")
    )


@pytest.mark.parametrize("folder", ["jaxinfer", "scripts", "examples"])
def test_every_file_that_a_docstring_names_exists(folder):
    wrong = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for name in re.findall(r"(?<![\w/.])[\w/-]+\.(?:py|sh|md)\b", ast.get_docstring(node) or "")
        if not any(known.endswith(f"/{name}") for known in _files())
    }
    assert wrong == set()
