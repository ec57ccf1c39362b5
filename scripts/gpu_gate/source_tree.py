"""The git id of the package's source as it lies on disk, on machines without git, too."""

import hashlib
import os
import subprocess
from pathlib import Path

from scripts.gpu_gate.processes import ROOT

PACKAGE = "jaxinfer"
_IGNORED = ("__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", "build", "dist")
_IGNORED_ENDINGS = (".pyc", ".egg-info")


def tree_id(directory: Path) -> str:
    """What `git rev-parse HEAD:DIRECTORY` is once all that lies there is committed.

    Args:
        directory: its ignored files (`.gitignore` of this project) do not count.
    """
    return (_tree(directory) or _object("tree", b"")).hex()


def package_tree_id() -> str:
    """`tree_id` of the package in this checkout."""
    return tree_id(ROOT / PACKAGE)


def changed_files(tree: str) -> list[str] | None:
    """Files of the package whose committed content differs from a tree's; None if it is not known.

    Args:
        tree: id of an earlier tree of the package.
    """
    command = ["git", "diff", "--name-only", tree, f"HEAD:{PACKAGE}"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.split() if done.returncode == 0 else None


def _tree(directory: Path) -> bytes | None:
    """A directory's object id; None for one without files, which git does not keep."""
    entries: list[tuple[bytes, bytes]] = []
    for path in directory.iterdir():
        if path.name in _IGNORED or path.name.endswith(_IGNORED_ENDINGS):
            continue
        name = os.fsencode(path.name)
        is_directory = path.is_dir() and not path.is_symlink()
        found = _tree(path) if is_directory else _blob(path)
        if found is not None:
            # Git sorts a directory as if its name ended with a slash.
            key = name + b"/" if is_directory else name
            entries.append((key, _mode(path, is_directory) + b" " + name + b"\0" + found))
    return _object("tree", b"".join(entry for _, entry in sorted(entries))) if entries else None


def _blob(path: Path) -> bytes:
    content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
    return _object("blob", content)


def _mode(path: Path, is_directory: bool) -> bytes:
    if is_directory:
        return b"40000"
    if path.is_symlink():
        return b"120000"
    return b"100755" if path.stat().st_mode & 0o100 else b"100644"


def _object(kind: str, content: bytes) -> bytes:
    header = f"{kind} {len(content)}".encode() + b"\0"
    return hashlib.sha1(header + content, usedforsecurity=False).digest()


def git_commit(directory: Path) -> str | None:
    """The checked-out commit, with "+changes" when tracked files differ; None outside git."""
    try:
        commit = _git(directory, "rev-parse", "HEAD")
        changed = _git(directory, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+changes" if changed else commit


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
