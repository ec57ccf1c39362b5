"""Trees are named as git names them, with and without git."""

import os
import subprocess

import pytest

from scripts.gpu_gate import source_tree
from scripts.gpu_gate.processes import ROOT
from scripts.gpu_gate.source_tree import changed_files, git_commit, tree_id


def git(directory, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@y", "-c", "core.hooksPath=/dev/null"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A package with all that decides about an id: order, modes, links, what is ignored."""
    package = tmp_path / "jaxinfer"
    (package / "a").mkdir(parents=True)
    (package / "empty").mkdir()
    (package / "a.py").write_text("1\n")  # before "a" as bytes, after "a/" in git's order
    (package / "a-b").write_bytes(bytes(range(256)))
    (package / "a" / "tool").write_text("#!/bin/sh\n")
    (package / "a" / "tool").chmod(0o755)
    (package / "link").symlink_to("a/tool")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "a.pyc").write_bytes(b"x")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    return tmp_path


def test_a_clean_trees_id_is_gits(repository):
    assert tree_id(repository / "jaxinfer") == git(repository, "rev-parse", "HEAD:jaxinfer")


@pytest.mark.parametrize("change", ["content", "mode", "name", "new"])
def test_whatever_changes_gives_another_id(repository, change):
    package = repository / "jaxinfer"
    before = tree_id(package)
    match change:
        case "content":
            (package / "a.py").write_text("2\n")
        case "mode":
            (package / "a.py").chmod(0o755)
        case "name":
            (package / "a.py").rename(package / "b.py")
        case "new":
            (package / "empty" / "c.py").touch()
    assert tree_id(package) != before
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "y")
    assert tree_id(package) == git(repository, "rev-parse", "HEAD:jaxinfer")


def test_what_git_ignores_does_not_count(repository):
    package = repository / "jaxinfer"
    before = tree_id(package)
    (package / "a" / "__pycache__").mkdir()
    (package / "a" / "__pycache__" / "b.pyc").touch()
    assert tree_id(package) == before


def test_this_packages_committed_id_is_gits():
    committed = subprocess.run(
        ["git", "rev-parse", "HEAD:jaxinfer"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        ["git", "status", "--porcelain", "jaxinfer"], cwd=ROOT, capture_output=True, check=False
    )
    if committed.returncode or changed.stdout:
        pytest.skip("needs a clean clone")
    assert source_tree.package_tree_id() == committed.stdout.strip()


def test_files_that_changed_since_a_tree_are_named(repository, monkeypatch):
    monkeypatch.setattr(source_tree, "ROOT", repository)
    before = source_tree.package_tree_id()
    (repository / "jaxinfer" / "a.py").write_text("2\n")
    git(repository, "commit", "-qam", "y")
    assert changed_files(before) == ["a.py"]
    assert changed_files(source_tree.package_tree_id()) == []
    assert changed_files("0" * 40) is None


def test_without_git_no_change_is_known(monkeypatch):
    monkeypatch.setitem(os.environ, "PATH", "")
    assert changed_files("0" * 40) is None


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
