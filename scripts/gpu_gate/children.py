"""Runs parts of a check in processes of their own (`child.py`), and reads what they report."""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from scripts.gpu_gate.processes import TIMED_OUT, run
from scripts.gpu_gate.rows import Row

SMALL_SHARE = {"XLA_CLIENT_MEM_FRACTION": "0.06"}
"""Beside an engine that takes 75% of the GPU, as all do that set nothing."""


def run_child(
    name: str,
    task: Mapping[str, Any],
    limit_s: float,
    deadline: float,
    settings: Mapping[str, str] | None = None,
) -> tuple[Any, Row | None]:
    """What a child reports; None and a bad row if it failed.

    Args:
        name: of the row.
        task: as `child.main` takes it.
        limit_s: seconds that it may take.
        deadline: on `time.perf_counter`'s clock, after which nothing goes on.
        settings: environment variables.
    """
    command = [sys.executable, "-m", "scripts.gpu_gate.child", json.dumps(task)]
    limit_s = min(limit_s, deadline - time.perf_counter())
    done = run(command, limit_s=limit_s, settings=settings)
    if done.returncode:
        print(f"\n== {name}\n{done.stderr[-4000:]}", flush=True)
        return None, Row(name, verdict(done.returncode, limit_s, done.stderr), False)
    return json.loads(done.stdout.splitlines()[-1]), None


def verdict(status: int, limit_s: float, said: str) -> str:
    """Why a process counts as failed."""
    if status == TIMED_OUT:
        return f"did not end within {max(limit_s, 0):.0f} s"
    last = said.strip().splitlines()[-1:] or ["nothing was said"]
    return f"ended with {status}: {last[0][:300]}"
