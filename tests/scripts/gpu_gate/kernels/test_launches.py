"""Every kernel has launches at shapes that it takes, whose results XLA computes, too."""

import jax
import pytest

from jaxinfer.kernels.implementations import MODULES
from scripts.gpu_gate.kernels.launches import launches
from tests.kernels.h200_target import trace_for_h200


@pytest.mark.parametrize("op", MODULES["mosaic"])
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
            context_lens = launch.arguments[4]
            assert any(int(length) % 64 for length in context_lens), launch.what
