"""The inner loop finds the tests of what changed, within its time."""

import subprocess

import pytest

from scripts import check


@pytest.fixture
def project(tmp_path):
    """A repository with a room of two tests, on a branch beside main."""
    for file in (
        "jaxinfer/serving/queue.py",
        "jaxinfer/serving/pool/pool.py",
        "tests/serving/test_queue.py",
        "tests/serving/test_queue_order.py",
        "tests/serving/pool/test_blocks.py",
        "tests/serving/pool/helpers.py",
        "tests/test_commands.py",
        "scripts/tables.py",
        "tests/scripts/test_tables.py",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    _git(tmp_path, "init", "-b", "main")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-m", "first")
    _git(tmp_path, "switch", "-c", "work")
    return tmp_path


def _git(root, *arguments):
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *author, *arguments], cwd=root, check=True, capture_output=True)


def test_changes_are_those_since_main_committed_or_not_and_new_files(project):
    assert check.changed_files(project) == []
    (project / "scripts/tables.py").write_text("a = 1\n")
    _git(project, "commit", "-am", "second")
    (project / "jaxinfer/serving/queue.py").write_text("a = 1\n")
    (project / "jaxinfer/serving/new.py").write_text("a = 1\n")
    (project / "tests/test_commands.py").unlink()
    changed = ["jaxinfer/serving/new.py", "jaxinfer/serving/queue.py", "scripts/tables.py"]
    assert check.changed_files(project) == changed


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("jaxinfer/serving/queue.py", ["serving/test_queue.py", "serving/test_queue_order.py"]),
        ("jaxinfer/serving/pool/pool.py", ["serving/pool/test_blocks.py"]),
        ("jaxinfer/serving/pool/__init__.py", ["serving/pool/test_blocks.py"]),
        ("jaxinfer/commands.py", ["test_commands.py"]),
        ("jaxinfer/unknown.py", []),
        ("scripts/tables.py", ["scripts/test_tables.py"]),
        ("tests/serving/test_queue.py", ["serving/test_queue.py"]),
        ("tests/serving/pool/helpers.py", []),
        ("README.md", ["test_readme.py"]),
    ],
)
def test_a_file_has_the_tests_at_its_mirrored_path(project, file, tests):
    assert check.tests_of(project, [file]) == [f"tests/{test}" for test in tests]


def test_a_test_of_two_changed_files_runs_once(project):
    changed = ["jaxinfer/serving/queue.py", "tests/serving/test_queue.py"]
    assert check.tests_of(project, changed).count("tests/serving/test_queue.py") == 1


def test_what_takes_too_long_is_left_out_but_never_everything():
    recorded = {"a": 30.0, "b": 20.0, "c": 5.0}
    assert check.within(40.0, ["a", "b", "c", "d"], recorded) == ["b", "c", "d"]
    assert check.within(10.0, ["a"], recorded) == ["a"]


def test_slow_tests_do_not_count(tmp_path, monkeypatch):
    source = "@pytest.mark.slow\ndef test_long(): ...\ndef test_short(): ...\n"
    (tmp_path / "test_a.py").write_text(source)
    (tmp_path / "test_b.py").write_text("pytestmark = pytest.mark.slow\ndef test_c(): ...\n")
    took = {"test_a.py::test_long[1]": 9.0, "test_a.py::test_short": 2.0, "test_b.py::test_c": 7.0}
    monkeypatch.setattr(check.durations, "recorded", lambda: took)
    assert check.quick_seconds(tmp_path, ["test_a.py", "test_b.py"]) == {"test_a.py": 2.0}


def test_types_are_checked_in_changed_files_of_the_package_alone():
    commands = check.checks_of(["jaxinfer/a.py", "tests/test_a.py", "docs/a.md"], [])
    assert [command[0] for command in commands] == ["ruff", "ruff", "basedpyright"]
    assert commands[-1][-1] == "jaxinfer/a.py"
    assert "tests/test_a.py" not in commands[-1]
