"""A file of answers as JSON lines, which a later run can resume."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from jaxinfer.cli.prompts import PromptLine


def open_answers(path: Path, lines: Sequence[PromptLine], *, resume: bool) -> tuple[TextIO, int]:
    """Open a file for answers, at its end; returns the number of prompts answered in it, too.

    Raises:
        ValueError: it is a directory or device, it is not empty and `resume` is False, or it
            does not hold answers to the first of these prompts.
        OSError: it can't be written.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: not a file; without --output, --json prints the answers")
    data = path.read_bytes() if path.exists() else b""
    if data and not resume:
        raise ValueError(f"{path}: exists; --resume continues it")
    whole = data[: data.rfind(b"\n") + 1]  # an interrupted run may leave part of a line
    records = whole.decode("utf-8", errors="replace").split("\n")[:-1]
    if len(records) > len(lines):
        raise ValueError(
            f"{path}: holds {len(records)} answers, but there are {len(lines)} prompts"
        )
    for number, (record, line) in enumerate(zip(records, lines, strict=False), 1):
        if not _answers(record, line):
            raise ValueError(f"{path}:{number}: not an answer to {line.where}; nothing to resume")
    file = path.open("r+" if data else "w", encoding="utf-8", newline="\n")
    file.truncate(len(whole))
    file.seek(len(whole))
    return file, len(records)


def _answers(record: str, line: PromptLine) -> bool:
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict)
        and value.get("prompt") == line.text
        and value.get("id") == line.id
        and "text" in value
    )
