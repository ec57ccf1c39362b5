"""Which all-reduce a program gets."""

import pytest

from jaxinfer.serving.collectives import choose_collectives
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.program_set import options_of

_KERNELS = "xla_gpu_experimental_use_collective_kernels"


@pytest.mark.parametrize(("rows", "choice"), [(2, "nccl"), (64, "nccl"), (256, "kernel")])
def test_small_reductions_go_through_nccl_inside_the_graph(rows, choice):
    assert choose_collectives(rows) == choice
    options = options_of(DecodeShape(rows, 64), platform="gpu", num_devices=2)
    assert (_KERNELS in options) == (choice == "nccl")
    assert ("COLLECTIVES" in options.get("xla_gpu_enable_command_buffer", "")) == (choice == "nccl")


def test_one_device_and_cpus_get_no_such_options():
    assert _KERNELS not in options_of(DecodeShape(2, 64), platform="gpu", num_devices=1)
    assert options_of(DecodeShape(2, 64), platform="cpu", num_devices=2) == {}


def test_long_prefills_keep_the_kernel():
    assert _KERNELS not in options_of(PrefillShape(8192, 8, 64), platform="gpu", num_devices=2)
