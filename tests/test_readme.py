"""The README's commands are what CI runs, and what it names exists."""

import re
from pathlib import Path

from jaxinfer.__main__ import COMMANDS

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


def test_ci_lints_checks_the_format_and_the_types():
    for command in ("ruff check .", "ruff format --check .", "basedpyright"):
        assert f".venv/bin/{command}" in CI
    assert "set -euo pipefail" in CI


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
