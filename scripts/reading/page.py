"""The generated parts of docs/reading.md and README.md: what runs, in order of call."""

import ast
import functools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.reading.plain_path import PlainPath
from scripts.reading.trace import PACKAGE, Called, files_of, lines_of

ROOT = PACKAGE.parent
PAGE, README = ROOT / "docs" / "reading.md", ROOT / "README.md"

_BEGIN, _END = (
    f"<!-- {word}: written by python -m scripts.reading -->" for word in ("begin", "end")
)
_ENTRY = re.compile(r"^ *- `([\w.]+)` \(`([\w/]+\.py)`, \d+\)", re.MULTILINE)
_SENTENCE = re.compile(r"A plain decode step\s+runs.*?\d lines\.", re.DOTALL)
_THREADS = {
    "MainThread": "In the caller's thread",
    "jaxinfer-engine": "In the engine's thread",
    "jaxinfer-launches": "In the thread that calls programs",
}


class Definition(NamedTuple):
    """Where a function begins, and the first sentence of its docstring."""

    line: int
    sentence: str


def with_path(page: str, path: PlainPath) -> str:
    """docs/reading.md with the plain path as it was traced."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{_sections(path)}\n{_END}{after}"


def listed(page: str) -> set[tuple[str, str]]:
    """The file and the name of every function that the page lists."""
    return {(file, name) for name, file in _ENTRY.findall(page)}


def core_sentence(path: PlainPath) -> str:
    """README's sentence about the size of the plain path beside the whole package."""
    host, device, generate = (files_of(each) for each in path)
    whole = sum(len(file.read_text().splitlines()) for file in PACKAGE.rglob("*.py"))
    return (
        f"A plain decode step runs\n{len(host)} host files with {lines_of(host):,} lines and "
        f"{len(device)} of device code with {lines_of(device):,}, a whole `LLM.generate`\n"
        f"{len(generate)} host files with {lines_of(generate):,}; the package has "
        f"{round(whole, -3):,} lines."
    )


def with_core_sentence(readme: str, path: PlainPath) -> str:
    """README.md with the present sizes."""
    return _SENTENCE.sub(lambda _: core_sentence(path), readme)


def numbers_of(readme: str) -> list[int]:
    """The numbers of the sentence, wherever it stands in a text."""
    (sentence,) = _SENTENCE.findall(readme)
    return [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", sentence)]


def definition_of(called: Called) -> Definition:
    """The definition of a function that ran; its sentence is empty if it has no docstring."""
    return _definitions(PACKAGE / called.file)[called.name]


def _sections(path: PlainPath) -> str:
    in_step = {each[:2] for each in path.host}
    rest = [each for each in path.generate if each[:2] not in in_step]
    return "\n".join(
        [
            f"### A decode step on the host: {_size(path.host)}",
            "",
            *_by_thread(path.host),
            f"### A decode step on the device: {_size(path.device)}",
            "",
            *_tree(path.device),
            "",
            f"### The rest of `LLM.generate`: with the step {_size(path.generate)}",
            "",
            *_by_thread(rest),
        ]
    )


def _size(called: Sequence[Called]) -> str:
    files = files_of(called)
    return f"{len(files)} files, {lines_of(files):,} lines"


def _by_thread(called: Sequence[Called]) -> Iterable[str]:
    for name in dict.fromkeys(each.thread for each in called):
        yield f"{_THREADS[name]}:"
        yield ""
        yield from _tree([each for each in called if each.thread == name])
        yield ""


def _tree(called: Sequence[Called]) -> Iterable[str]:
    """A list in which a function stands below what called it first."""
    open_depths: list[int] = []
    for each in called:
        while open_depths and open_depths[-1] >= each.depth:
            open_depths.pop()
        line, sentence = definition_of(each)
        place = f"`{each.name}` (`jaxinfer/{each.file}`, {line})"
        yield f"{'    ' * len(open_depths)}- {place}{sentence and ': '}{sentence}"
        open_depths.append(each.depth)


@functools.cache
def _definitions(file: Path) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    _collect(ast.parse(file.read_text()), "", found)
    return found


def _collect(node: ast.Module | ast.ClassDef, prefix: str, found: dict[str, Definition]) -> None:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            _collect(child, f"{prefix}{child.name}.", found)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            own = ast.get_docstring(child)
            if own is None and child.name == "__init__" and isinstance(node, ast.ClassDef):
                own = ast.get_docstring(node)
            found[prefix + child.name] = Definition(child.lineno, _first_sentence(own or ""))


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.:;])\s+(?=[A-Z`])", paragraph)[0].rstrip(".:;")
    sentence = sentence.replace("``", "")  # code that is no name of ours
    return f"{sentence}." if sentence else ""
