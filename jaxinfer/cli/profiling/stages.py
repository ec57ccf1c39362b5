"""Starts the processes of `jaxinfer profile`, which must set XLA's flags before JAX starts.

The first runs the steps as always and, on a CPU, records them. On a GPU a second one records them
without CUDA graphs, within which no trace sees a kernel's name.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Stage = Literal["as_always", "recorded"]
RESULT = "stage.json"
"""File in the profile's directory with the first process's messages to the second."""
MEMORY_TEXT = "memory.txt"
"""File in the profile's directory with the memory report."""
WITHOUT_GRAPHS = "--xla_gpu_enable_command_buffer="
_MODULE = "jaxinfer.cli.profiling.stage"


def run_stages(argv: Sequence[str], directory: Path) -> int:
    """Run the processes that the arguments ask for; returns the first status that is not 0."""
    status = run_stage("as_always", argv)
    if status != 0 or read_result(directory)["platform"] != "gpu":
        return status
    return run_stage("recorded", argv)


def run_stage(stage: Stage, argv: Sequence[str]) -> int:
    """Run one process to its end; returns its status."""
    command = [sys.executable, "-m", _MODULE, stage, *argv]
    return subprocess.run(command, env=stage_environment(stage, os.environ), check=False).returncode


def stage_environment(stage: Stage, environment: Any) -> dict[str, str]:
    """The environment of a process.

    Programs that an earlier version compiled have no names of parts, so those in JAX's cache are
    told apart by their names, too.
    """
    changed = {**environment, "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1"}
    if stage == "recorded":
        changed["XLA_FLAGS"] = f"{changed.get('XLA_FLAGS', '')} {WITHOUT_GRAPHS}".strip()
    return changed


def read_result(directory: Path) -> dict[str, Any]:
    """The first process's measurements."""
    return json.loads((directory / RESULT).read_text())


def write_result(directory: Path, result: dict[str, Any]) -> None:
    """Write the measurements for the parent, and for the second process."""
    (directory / RESULT).write_text(json.dumps(result))
