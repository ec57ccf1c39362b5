"""The quick check: starts, the command line and what an engine must do, from empty caches.

Starts run alone, with all of the GPU's memory, as users run them. What only has to be right, the
command too, runs side by side.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from scripts.gpu_gate.child import NUM_OUTPUTS, PROMPT
from scripts.gpu_gate.children import SMALL_SHARE, run_child, verdict
from scripts.gpu_gate.processes import run
from scripts.gpu_gate.rows import Row, say

LIMIT_S = 180.0
_SMALL_ENGINE = {
    "compile_ahead": False,
    "max_num_seqs": 8,
    "max_model_len": 512,
    "num_kv_blocks": 512,
}
_SHAPE = "0.6b"
_LIMITS_S = {"cold": 110.0, "warm": 40.0, "behaviours": 75.0, "generate": 75.0, "devices": 90.0}


class Result(NamedTuple):
    """What a quick check found.

    Attributes:
        rows: the table.
        starts: times and counts of each start, by name.
    """

    rows: list[Row]
    starts: dict[str, Any]


def run_quick(num_devices: int) -> Result:
    """Run every part within `LIMIT_S` seconds; what does not end in time is a bad row."""
    begin = time.perf_counter()
    deadline = begin + LIMIT_S
    with tempfile.TemporaryDirectory() as cache:
        starts, rows = _starts(cache, deadline)
        expected = starts["bundled cold"] or {}
        parts = [
            lambda: _part("behaviours", _task("behaviours", f"{cache}/bundled"), deadline),
            lambda: _command_rows(f"{cache}/bundled", expected.get("token_ids"), deadline),
        ]
        if num_devices > 1:
            task = _task("devices", f"{cache}/devices", **_SMALL_ENGINE)
            parts.append(lambda: _part("devices", task, deadline, SMALL_SHARE))
        with ThreadPoolExecutor(len(parts)) as pool:
            for found in pool.map(lambda part: part(), parts):
                say(*found)
                rows += found
    seconds = time.perf_counter() - begin
    rows.append(Row("quick check", f"{seconds:.0f} s of {LIMIT_S:.0f}", seconds <= LIMIT_S))
    return Result(rows, {name: start for name, start in starts.items() if start is not None})


def _starts(cache: str, deadline: float) -> tuple[dict[str, Any], list[Row]]:
    """Start each model in a fresh process, cold and then warm; the results, None for none."""
    starts: dict[str, Any] = {}
    rows: list[Row] = []
    for name, shape in ((_SHAPE, _SHAPE), ("bundled", None)):
        for kind in ("cold", "warm"):
            task = _task("start", f"{cache}/{name}") | {"model_shape": shape}
            found, row = run_child(f"{name} {kind}", task, _LIMITS_S[kind], deadline)
            starts[f"{name} {kind}"] = found
            rows.append(row or start_row(name, kind, found, starts[f"{name} cold"]))
            say(rows[-1])
    return starts, rows


def start_row(name: str, kind: str, start: dict[str, Any], cold: dict[str, Any] | None) -> Row:
    """A start that ended, judged by what it found on disk, compiled later and wrote.

    Args:
        name: of the model.
        kind: "cold" or "warm".
        start: what the child reported.
        cold: the same of the cold start; None if it did not end.
    """
    times, hits = start["start_up"], start["cache_hits"]
    faults = []
    if kind == "cold" and hits:
        faults.append(f"{hits} programs were in the cache of a cold start")
    if kind == "warm" and times["num_traced"]:
        faults.append(f"a warm start traced {times['num_traced']} programs")
    if kind == "warm" and hits < start["num_programs"]:
        faults.append(f"a warm start found {hits} of {start['num_programs']} programs")
    if start["compiled_later"]:
        faults.append(f"{start['compiled_later']} programs were compiled after the start")
    if cold is not None and start["token_ids"] != cold["token_ids"]:
        faults.append("its greedy tokens are not the cold start's")
    what = f"{start['engine_s']:.1f} s, {start['num_programs']} programs, {hits} from the cache, "
    what += f"{times['num_traced']} traced here, {start['attention_backend']} attention"
    return Row(f"{name} {kind}", "; ".join([what, *faults]), not faults)


def _command_rows(cache: str, expected: Sequence[int] | None, deadline: float) -> list[Row]:
    """`python -m jaxinfer.generate`, on the programs that an engine of other sizes has left."""
    command = [sys.executable, "-m", "jaxinfer.generate", "-p", PROMPT, "-m", str(NUM_OUTPUTS)]
    command += ["--temp", "0", "--ignore-eos", "--json", "--quiet"]
    command += ["--compilation-cache-dir", cache]
    begin = time.perf_counter()
    limit_s = min(_LIMITS_S["generate"], deadline - begin)
    done = run(command, limit_s=limit_s, settings=SMALL_SHARE)
    seconds = time.perf_counter() - begin
    if done.returncode:
        return [Row("generate", verdict(done.returncode, limit_s, done.stderr), False)]
    is_same = json.loads(done.stdout)["token_ids"] == expected
    what = f"{seconds:.1f} s as a command beside an engine, {'' if is_same else 'NOT '}its tokens"
    return [Row("generate", what, is_same)]


def _part(
    name: str, task: dict[str, Any], deadline: float, settings: dict[str, str] | None = None
) -> list[Row]:
    """Rows of a child that reports rows."""
    found, row = run_child(name, task, _LIMITS_S[name], deadline, settings)
    return [row] if row is not None else [Row(*each) for each in found["rows"]]


def _task(part: str, cache: str, **arguments: Any) -> dict[str, Any]:
    return {"part": part, "arguments": {"compilation_cache_dir": cache, **arguments}}
