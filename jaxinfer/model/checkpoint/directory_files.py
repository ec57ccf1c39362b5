"""Reads files of a model directory that strangers may have made: regular ones, of bounded size."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from jaxinfer.errors import ModelLoadError

TEMPLATES_DIRECTORY = "additional_chat_templates"
_MOST_TEMPLATES = 100
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_pickle(name: str) -> bool:
    """Whether a file of this name is a pickle, which can run code when it is read."""
    return name.endswith(_PICKLE_SUFFIXES)


def contained_file(directory: Path, name: str, named_by: Path) -> Path:
    """Path of a file of ``directory``, refused if it leads outside.

    A snapshot of the Hugging Face cache is made of links into the ``blobs`` directory beside it;
    only such links may leave it.

    Args:
        name: relative path, possibly written by a stranger.
        named_by: where the name was found, for messages.

    Raises:
        ModelLoadError: the name or a link leads outside, or there is no regular file.
    """
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ModelLoadError(f"{named_by}: names {name!r:.120}, which lies outside the directory")
    if is_pickle(name):
        raise ModelLoadError(f"{named_by}: names {name!r:.120}; pickled weights are never loaded")
    file, root = directory / name, directory.resolve()
    try:
        target = file.resolve(strict=True)
    except FileNotFoundError:
        if file.is_symlink():
            raise ModelLoadError(f"{file}: a link to what is missing") from None
        if named_by == directory:
            raise ModelLoadError(f"{directory}: has no {name}") from None
        raise ModelLoadError(f"{file}: missing (named by {named_by.name})") from None
    except (OSError, RuntimeError) as error:
        raise ModelLoadError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise ModelLoadError(f"{file}: a link out of the model directory")
    if not target.is_file():
        raise ModelLoadError(f"{file}: not a regular file")
    return file


def has_file(directory: Path, name: str) -> bool:
    """Whether there is anything of that name, be it a dangling link; `read_file` may refuse it."""
    return os.path.lexists(directory / name)


def read_file(directory: Path, name: str, most_bytes: int) -> bytes:
    """Content of a small file of a model directory.

    Raises:
        ModelLoadError: it leads outside, is missing, too large or no regular file, or can't be
            read; one line that names it.
    """
    file = contained_file(directory, name, directory)
    try:
        # Should another process put a pipe in its place meanwhile, opening does not wait.
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ModelLoadError(f"{file}: not a regular file")
            content = stream.read(most_bytes + 1)
    except OSError as error:
        raise ModelLoadError(f"{file}: {error.strerror}") from None
    if len(content) > most_bytes:
        raise ModelLoadError(f"{file}: larger than {_as_text(most_bytes)}")
    return content


def read_text(directory: Path, name: str, most_bytes: int) -> str:
    """`read_file` as UTF-8 text, of which ModelLoadError says if it is none."""
    try:
        return read_file(directory, name, most_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{directory / name}: not UTF-8 text: {error.reason}") from None


def read_json(directory: Path, name: str, most_bytes: int) -> dict[str, Any]:
    """The JSON object in a small file, from `read_file`; ModelLoadError if it is none."""
    content = read_file(directory, name, most_bytes)
    try:
        value = json.loads(content)
    except RecursionError:
        raise ModelLoadError(f"{directory / name}: not JSON: nested too deeply") from None
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ModelLoadError(f"{directory / name}: not JSON ({reason})") from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise ModelLoadError(f"{directory / name}: must be a JSON object, is a JSON {kind}")
    return value


def additional_templates(directory: Path) -> dict[str, str]:
    """Relative paths of a model's chat templates beside its default one, by their names.

    Raises:
        ModelLoadError: there are too many.
    """
    folder = directory / TEMPLATES_DIRECTORY
    files = sorted(folder.glob("*.jinja")) if folder.is_dir() else []
    if len(files) > _MOST_TEMPLATES:
        raise ModelLoadError(f"{folder}: more than {_MOST_TEMPLATES} templates")
    return {file.stem: f"{TEMPLATES_DIRECTORY}/{file.name}" for file in files}


def _as_text(num_bytes: int) -> str:
    mib = num_bytes >> 20
    return f"{mib} MiB" if mib else f"{num_bytes >> 10} KiB"
