"""Records an engine's memory during a run, and writes the report into a directory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxinfer import LLM

MEMORY_TEXT = "memory.txt"
"""The table, in a recording's directory."""


def record_memory_of(llm: "LLM", run: Callable[[], object], directory: Path) -> list[Path]:
    """Record the memory of an engine while `run` runs, and write what was found.

    Args:
        llm: the engine.
        run: has it generate.
        directory: takes the files; it is made if it does not exist.

    Returns:
        The files: text and JSON.

    Raises:
        RuntimeError: a profile or memory is being recorded already.
        OSError: the directory can't be written to.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with llm.record_memory() as recording:
        run()
    texts = {
        MEMORY_TEXT: f"{recording}\n",
        "memory.json": json.dumps(recording.to_dict(), indent=2) + "\n",
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    return [directory / name for name in texts]
