"""The pages of docs/tasks: their programs run, their commands have the flags that they name."""

import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import jax
import pytest

from jaxinfer.cli.prompts import read_prompts

TASKS = Path(__file__).resolve().parents[1] / "docs" / "tasks"
PAGES = [*sorted(TASKS.glob("*.md")), TASKS.parent / "quantization.md"]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


COMMANDS = [
    line
    for page in PAGES
    for block in _blocks(page, "bash")
    for line in block.replace("\\\n", "").split("\n")
]
PROGRAMS = {page.stem: block for page in PAGES for block in _blocks(page, "python")}


@pytest.mark.parametrize("line", [line for line in COMMANDS if line])
def test_a_command_is_understood(line):
    words = shlex.split(line.split("|")[-1])
    assert words[0] == "jaxinfer"
    command = importlib.import_module(f"jaxinfer.{words[1]}")
    read = getattr(command, "read_arguments", None) or command.build_parser().parse_args
    read(words[2:])


@pytest.fixture
def optimized(name):
    """Have LLVM optimize fp8, which takes a CPU minutes otherwise."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", before and "fp8" not in PROGRAMS[name])
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs(name, optimized):
    # In this process, where JAX is loaded; promotion of dtypes is that of a user.
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        jax.numpy_dtype_promotion("standard"),
    ):
        exec(compile(PROGRAMS[name], f"{name}.md", "exec"), {"__name__": "__main__"})
    assert len(printed.getvalue().split()) > 1


def test_the_lines_of_a_prompt_file_are_read(tmp_path):
    file = tmp_path / "prompts.jsonl"
    (lines,) = _blocks(TASKS / "many-prompts.md", "json")
    file.write_text(lines)
    assert [line.id for line in read_prompts(None, str(file))] == ["tale-1", "sum-1"]


def test_every_page_is_listed():
    listed = set(re.findall(r"\]\((.*?\.md)\)", (TASKS / "README.md").read_text()))
    assert {Path(each).name for each in listed} | {"README.md"} == {page.name for page in PAGES}
