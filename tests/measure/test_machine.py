"""Figures carry what they were measured on."""

import subprocess

import jaxinfer
from jaxinfer.measure.machine import describe_machine, git_commit


def test_the_machine_is_described_by_device_and_versions():
    machine = describe_machine()
    assert machine["platform"] == "cpu"
    assert 0.1 < machine["python_loop_ms"] < 10_000
    assert machine["num_devices"] == 8  # emulated, see conftest
    assert machine["versions"]["jaxinfer"] == jaxinfer.__version__
    assert {"python", "jax", "jaxlib", "flax"} <= machine["versions"].keys()


def test_a_commit_with_changed_files_is_marked(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit}+changes"


def test_outside_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
