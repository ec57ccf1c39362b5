"""Notebooks of the examples, written from their programs: python -m scripts.docs.notebooks

A program's docstring becomes the first cell, its imports and settings the second, and each function
and class one of its own; what calls them is given here. Nothing is run: there are no outputs.
"""

import ast
import json
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
_STEERING = """from IPython.display import Image, display

effect = main(figure := Path("steering.png"))
if figure.exists():
    display(Image(filename=str(figure)))"""
CALLS = {
    "steering": (_STEERING,),
    "lora_grpo": ("steps = train()", "[step.reward for step in steps]"),
}
"""By example: the cells that end its notebook. They stand for `main` where they don't call it."""


def notebook(name: str) -> str:
    """The text of ``examples/NAME.ipynb``."""
    source = (EXAMPLES / f"{name}.py").read_text()
    title, _, more = (ast.get_docstring(ast.parse(source)) or name).partition("\n")
    title, _, _ = title.partition(": python ")
    text = f"# {title}\n{more}\n\nThe same program as [`{name}.py`]({name}.py)."
    sources = [text, *_code_cells(source, CALLS[name])]
    cells = [_cell(i, "code" if i else "markdown", each) for i, each in enumerate(sources)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _code_cells(source: str, calls: tuple[str, ...]) -> list[str]:
    """What comes before the first definition, each definition alone, then the calls."""
    lines = source.splitlines()
    docstring, *nodes = ast.parse(source).body
    defined = [each for each in nodes if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    calls_main = any("main(" in each for each in calls)
    starts = [_first_line(each) for each in defined]
    settings = "\n".join(lines[docstring.end_lineno : starts[0] - 1]).strip()
    definitions = [
        "\n".join(lines[start - 1 : each.end_lineno])
        for start, each in zip(starts, defined, strict=True)
        if calls_main or each.name != "main"
    ]
    return [settings, *definitions, *calls]


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min(each.lineno for each in (node, *node.decorator_list))


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def main() -> None:
    """Write all of them."""
    for name in CALLS:
        (EXAMPLES / f"{name}.ipynb").write_text(notebook(name))
        print(EXAMPLES / f"{name}.ipynb")


if __name__ == "__main__":
    main()
