"""The script that compiles for H200s misses no test, hides no skip, and is part of CI."""

import tomllib
from pathlib import Path

import pytest

from scripts import h200_compile
from scripts.h200_compile import (
    TESTS,
    TESTS_OF_NEWEST,
    CheckError,
    count_passed,
    read_costs,
    requirements,
)

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_with_marked_tests_is_run():
    marked = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "import" in (text := path.read_text()) and "needs_plugin\n" in text
    ]
    assert marked == sorted(TESTS + TESTS_OF_NEWEST)


def test_ci_runs_it_after_the_tests():
    ci = (ROOT / ".ci" / "run").read_text()
    assert ci.index("-m pytest") < ci.index(".venv/bin/python scripts/h200_compile.py\n")


def test_environments_can_be_made_before_there_is_time_to_check(monkeypatch):
    made = []
    monkeypatch.setattr(h200_compile, "_environment", made.append)
    monkeypatch.setattr(h200_compile, "check", lambda version: pytest.fail("checked"))
    assert h200_compile.main(["--environments"]) == 0
    assert sorted(made) == ["newest", "oldest"]


def test_the_oldest_jax_is_the_lowest_that_the_project_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lowest = next(line for line in project["dependencies"] if line.startswith("jax>="))
    assert requirements("oldest", project)[0] == lowest.replace(">=", "==")
    assert requirements("newest", project)[0] == lowest
    assert not any("torch" in line for line in requirements("newest", project))


def _report(tmp_path, *cases):
    path = tmp_path / "report.xml"
    path.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return path


def test_costs_are_printed_beside_their_bounds(tmp_path):
    cost = '<properties><property name="launches" value="3 of 4"/></properties>'
    path = _report(
        tmp_path, '<testcase name="test_a"/>', f'<testcase name="b[decode]">{cost}</testcase>'
    )
    assert count_passed(path) == 2
    assert [line.split() for line in read_costs(path)] == [["decode", "launches", "3", "of", "4"]]


@pytest.mark.parametrize("cases", [(), ('<testcase name="test_a"><skipped/></testcase>',)])
def test_a_skipped_test_or_none_at_all_is_an_error(tmp_path, cases):
    with pytest.raises(CheckError, match="skipped"):
        count_passed(_report(tmp_path, *cases))


def test_pytest_checks_the_shapes_of_every_kernel_module_but_what_others_compile():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]
    listed = options["ini_options"]["addopts"].split("--jaxtyping-packages=")[1].split(",")
    paths = sorted((ROOT / "jaxinfer" / "kernels").rglob("*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    unchecked = [
        module
        for module in modules
        if not module.endswith("__init__")
        and not any(module == name or module.startswith(name + ".") for name in listed)
    ]
    assert [name.removeprefix("jaxinfer.kernels.") for name in unchecked] == [
        "attention.numba.call_frame",
        "attention.numba.kernels",
        "attention.triton.kernels",
    ]
