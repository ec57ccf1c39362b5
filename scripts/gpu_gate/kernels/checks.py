"""Runs each GPU kernel alone, first of all, so that one that stands still is named.

And sees that it would be: attention kernels that are made to spin must end their process, and the
start of an engine, within a stated time and by name.
"""

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scripts.gpu_gate.children import SMALL_SHARE, run_child
from scripts.gpu_gate.kernels.trial import LIMIT_S, TRIED, TriedOp, kernel_title
from scripts.gpu_gate.rows import Row

_PROCESS_LIMIT_S, _START_LIMIT_S = 90.0, 5.0
_STOOD_STILL, _KILLED = "did not answer within", "did not end within"
# Kept nowhere: what spins is found by the same source as what does not.
_SPINNING_ENGINE = {
    "compilation_cache_dir": "",
    "compile_ahead": True,
    "max_num_seqs": 8,
    "max_model_len": 512,
    "num_kv_blocks": 512,
    "device_timeout": _START_LIMIT_S,
}


def check_kernels() -> list[Row]:
    """A row for each of Mosaic's kernels, and for what is said of one that spins.

    They run side by side, before anything takes the GPU's memory: most of it is compiling.
    """
    deadline = time.perf_counter() + _PROCESS_LIMIT_S
    checks: list[Callable[[float], Row]] = [
        *(functools.partial(_check_kernel, op) for op in TRIED),
        _check_spinning_kernel,
        _check_spinning_start,
    ]
    with ThreadPoolExecutor(len(checks)) as pool:
        return list(pool.map(lambda check: check(deadline), checks))


def stand_still(rows: Sequence[Row]) -> bool:
    """Whether some kernel did not end: a program that holds it would not, either."""
    names = {kernel_title(op) for op in TRIED}
    bad = [row for row in rows if row.name in names and not row.good]
    return any(said in row.what for row in bad for said in (_STOOD_STILL, _KILLED))


def _check_kernel(op: TriedOp, deadline: float) -> Row:
    task = {"part": "kernel", "op": op}
    found, bad = run_child(kernel_title(op), task, _PROCESS_LIMIT_S, deadline, SMALL_SHARE)
    return bad or Row(*found["row"])


def _check_spinning_kernel(deadline: float) -> Row:
    """Decode attention that never ends is named by its own check."""
    task = {"part": "kernel", "op": "decode", "spins": True}
    named = rf"{kernel_title('decode')} {_STOOD_STILL} {LIMIT_S:g} s"
    return _named("spinning kernel", task, named, deadline)


def _check_spinning_start(deadline: float) -> Row:
    """An engine whose attention never ends says at its start which program that is."""
    task = {"part": "start", "model_shape": None, "spins": True, "arguments": _SPINNING_ENGINE}
    named = rf"{_STOOD_STILL} {_START_LIMIT_S:g} s \((Decode|Prefill|SampledDecode)(Shape|Key)\("
    return _named("spinning start", task, named, deadline)


def _named(name: str, task: Mapping[str, Any], pattern: str, deadline: float) -> Row:
    """Good where a child fails with a last line that holds `pattern`."""
    begin = time.perf_counter()
    found, row = run_child(name, task, _PROCESS_LIMIT_S, deadline, SMALL_SHARE)
    seconds = time.perf_counter() - begin
    if row is None:
        return Row(name, f"a fault was not noticed: {found}"[:300], False)
    return Row(name, f"{row.what}, after {seconds:.0f} s", bool(re.search(pattern, row.what)))
