"""The README's commands are what CI runs, and what it names exists."""

import re
import subprocess
from pathlib import Path

import pytest

from jaxinfer import LLM, ModelConfig, load_params
from jaxinfer.__main__ import COMMANDS
from jaxinfer.model.checkpoint.hub import BUNDLED_MODEL
from jaxinfer.model.sharding import make_mesh

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()


def _shell_commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_the_first_command_installs_and_generates_in_a_fresh_environment():
    first = _shell_commands()[0]
    assert first.startswith("python3 -m venv .venv && ")
    assert "pip install" in first
    assert "-m jaxinfer.generate" in first


def test_ci_runs_exactly_the_second_command():
    second = _shell_commands()[1]
    assert "pip install" in second
    assert ".[test]" in second
    assert "pytest" in second
    assert second in CI.splitlines()


@pytest.mark.parametrize(
    "failing",
    [
        "pip install -q -e .[test]",
        "python -m pytest",
        "ruff check .",
        "mkdocs build --strict",
        "basedpyright",
        "clients --environment",
        "clients",
        "python scripts/h200_compile.py",
    ],
)
def test_ci_ends_where_a_command_fails_and_names_the_step(tmp_path, failing):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(CI)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    names = ("pip", "python", "ruff", "basedpyright", "mkdocs")
    for program in (*(programs / name for name in names), tmp_path / ".ci" / "clients"):
        name = program.name
        line = f'line=$(echo {name} $*); echo "$line" >> "{tmp_path}/called"; echo "said: $line"'
        program.write_text(f'#!/bin/sh\n{line}\n[ "$line" != "{failing}" ]\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["bash", tmp_path / ".ci" / "run"], check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    # What it said, under its name, and nothing behind it but which step failed.
    said = done.stdout.split("\n== ")
    assert f"said: {failing}\n" in said[-2]
    assert said[-1].startswith(f"failed: {said[-2].split(' (')[0]} (status 1, ")


def test_ci_lints_checks_the_format_and_the_types():
    for command in ("ruff check .", "ruff format --check .", "basedpyright"):
        assert f".venv/bin/{command}" in CI
    assert "set -euo pipefail" in CI


def test_ci_builds_the_documentation_and_takes_warnings_for_errors():
    # --quiet would keep warnings from --strict.
    assert re.search(r"\.venv/bin/mkdocs build --strict$", CI, re.MULTILINE)


@pytest.mark.slow
def test_the_library_examples_run():
    """The blocks in order, on the bundled model, with what they leave to the reader."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    blocks = [block for block in blocks if "openai" not in block]  # tests/server/openai has it
    assert len(blocks) == 3
    mesh = make_mesh(1)
    params = load_params(BUNDLED_MODEL, ModelConfig.from_directory(BUNDLED_MODEL), "float32", mesh)
    left_to_the_reader = {
        "directory": BUNDLED_MODEL,
        "mesh": mesh,
        "params": params,
        "new_params": params,
        "prompts": ["Once"],
    }
    names: dict[str, object] = {}
    for block in blocks:
        names |= left_to_the_reader
        exec(_small(block), names)  # our own README
        if isinstance(llm := names.get("llm"), LLM):
            llm.close()


def _small(block: str) -> str:
    block = block.replace('LLM("Qwen/Qwen3-0.6B")', "LLM()").replace(
        "max_tokens=64", "max_tokens=4"
    )
    block = block.replace("n=16, temperature=1.0", "n=2, temperature=1.0, max_tokens=4")
    settings = "compile_ahead=False, max_num_seqs=4, show_progress=False, max_model_len=256"
    return (
        re.sub(r"LLM\(\n", f"LLM({settings},\n", block)
        .replace("LLM()", f"LLM({settings})")
        .replace("LLM(logits_processor", f"LLM({settings}, logits_processor")
    )


def test_every_command_is_listed():
    for name in COMMANDS:
        assert f"| `{name}` |" in README


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", README)
    local = [link for link in links if not link.startswith("http")]
    assert local
    for link in local:
        assert (ROOT / link).exists(), link


def test_every_script_that_contributing_names_exists():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    scripts = re.findall(r"scripts/\w+\.py", page)
    assert scripts
    for script in scripts:
        assert (ROOT / script).exists(), script
