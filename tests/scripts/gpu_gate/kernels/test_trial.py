"""A kernel that is right is a good row; one that is wrong, or never ends, is named."""

import subprocess
import sys

import jax.numpy as jnp
import pytest

from scripts.gpu_gate.kernels import launches, trial

_X = jnp.arange(1.0, 5.0)


def _launch(run, what="4 values"):
    return launches.Launch(what, run, lambda x: (x, {"twice": 2 * x}), (_X,))


def _right(x):
    return x, {"twice": 2 * x}


@pytest.mark.parametrize(
    ("runs", "good", "said"),
    [
        ([_right], True, "1 shape within 0.0000 of XLA's"),
        ([_right, _right], True, "2 shapes within 0.0000 of XLA's"),
        ([lambda x: (x, {"twice": 2.02 * x})], True, "1 shape within 0.0100 of XLA's"),
        ([_right, lambda x: (x, {"twice": 2.2 * x})], False, "differs from XLA's by 0.100"),
        ([lambda x: (x * jnp.nan, {"twice": 2 * x})], False, "differs from XLA's by nan"),
        ([], True, "not run: needs more GPUs"),
    ],
)
def test_results_are_compared_with_xlas(monkeypatch, runs, good, said):
    monkeypatch.setattr(launches, "launches", lambda op: map(_launch, runs))
    row = trial.try_kernel("silu_mul")
    assert (row.name, row.good) == ("kernel silu_mul", good)
    assert said in row.what


_NEVER = """
import time
import jax
import jax.numpy as jnp
from scripts.gpu_gate.kernels import launches, trial

def never(x):
    return jax.pure_callback(lambda x: time.sleep(60) or x, x, x)

one = launches.Launch("4 values", never, never, (jnp.ones(4),))
launches.launches = lambda op: [one]
trial.try_kernel("silu_mul", limit_s=0.5)
"""


@pytest.mark.slow
def test_a_launch_that_does_not_end_ends_the_process_which_names_it():
    done = subprocess.run(
        [sys.executable, "-c", _NEVER], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "error: kernel silu_mul did not answer within 0.5 s (4 values)"
