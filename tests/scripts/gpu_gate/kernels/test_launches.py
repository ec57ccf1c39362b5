"""Every kernel has launches at shapes that it takes, whose results XLA computes, too."""

import json
import subprocess
import sys

import jax
import pytest

from scripts.gpu_gate.kernels.launches import launches
from scripts.gpu_gate.kernels.trial import TRIED
from tests.kernels.h200_target import trace_for_h200

_LONG = ("experts of codes", "large")


@pytest.mark.parametrize(
    "op", [pytest.param(op, marks=[pytest.mark.slow] * (op in _LONG)) for op in TRIED]
)
def test_a_kernel_takes_the_shapes_that_it_is_tried_with(op):
    count = 0
    for launch in launches(op):
        found = trace_for_h200(launch.run, *launch.arguments)
        expected = jax.eval_shape(launch.expected, *launch.arguments)
        shapes = [(x.shape, x.dtype) for x in jax.tree.leaves(found.out_info)]
        assert shapes == [(x.shape, x.dtype) for x in jax.tree.leaves(expected)], launch.what
        count += 1
    assert count >= 1


def test_attention_is_tried_with_rows_that_end_inside_a_page():
    """Where copies are left out: what stood still once."""
    for op in ("decode", "prefill"):
        for launch in launches(op):
            context_lens = launch.arguments[3]
            assert any(int(length) % 64 for length in context_lens), launch.what


_SPINS = """
from scripts.gpu_gate.kernels.launches import launches
from scripts.gpu_gate.kernels.spinning import add_an_arrival
from tests.kernels.h200_target import lower_for_h200

launch = next(launches("decode"))
if SPINS:
    add_an_arrival()
import jax
from jax.experimental.mosaic.gpu import core
seen = []
lower = core._lower_as_gpu_kernel
def note(*args, **kwargs):
    seen.append(kwargs)
    return lower(*args, **kwargs)
core._lower_as_gpu_kernel = note
lower_for_h200(launch.run, *launch.arguments)
(kwargs,) = seen
is_barrier = lambda leaf: isinstance(leaf, core.Barrier)
leaves = jax.tree.leaves(kwargs["smem_scratch_shape"], is_leaf=is_barrier)
print(sorted(leaf.arrival_count for leaf in leaves if is_barrier(leaf)))
"""


def test_a_kernel_that_spins_on_purpose_waits_for_one_arrival_too_many():
    counts = []
    for spins in ("False", "True"):
        code = _SPINS.replace("SPINS", spins)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
        )
        counts.append(json.loads(done.stdout))
    plain, spinning = counts
    assert max(plain) > 1
    assert spinning == [count + (count > 1) for count in plain]
