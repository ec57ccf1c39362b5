"""Starts of engines with default arguments on an H200, up to the first launch.

Each in a process that has traced nothing itself, so that it shows what only tracing would import.
"""

import json
import subprocess
import sys

import pytest

from tests.kernels.h200_target import needs_plugin

pytestmark = [needs_plugin, pytest.mark.slow]

_PROGRAMS = 4
_ATTENTION = {"norm_rope_write", "paged_decode_attention"}


def _start(shape, directory, *, cores):
    command = [sys.executable, "-W", "error", "-m", "tests.serving.startup.h200_start"]
    command += [shape, str(directory), str(cores)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    traced, read, kernels = json.loads(done.stdout)
    return traced, read, {name: set(launched) for name, launched in kernels.items()}


@pytest.mark.parametrize("shape", ["bundled", "0.6b"])
def test_a_start_compiles_the_same_whoever_traced_the_programs(shape, tmp_path):
    by_workers, by_itself = tmp_path / "workers", tmp_path / "none"
    # Two cores are one worker, and one core is none.
    cold = _start(shape, by_workers, cores=2)
    warm = _start(shape, by_workers, cores=2)
    alone = _start(shape, by_itself, cores=1)
    assert cold[:2] == warm[:2] == (0, _PROGRAMS)
    assert alone[:2] == (_PROGRAMS, 0)
    kernels = cold[2]
    assert kernels == warm[2] == alone[2]
    assert kernels["DecodeShape"] >= {"norm_rope_write", "attend_shared", "attend_own"}
    assert kernels["SampledDecodeKey"] >= _ATTENTION
    assert kernels["PrefillShape"] >= {*_ATTENTION, "paged_prefill_attention"}
    assert kernels["SamplerKey"] == set()
