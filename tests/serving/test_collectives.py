"""Which all-reduce a program gets."""

import pytest

from jaxinfer.serving.collectives import choose_collectives
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.program_set import options_of
from jaxinfer.serving.programs import BurstKey

_KERNELS = "xla_gpu_experimental_use_collective_kernels"
_BURST = BurstKey(DecodeShape(2, 64), "greedy", 8)


def test_bursts_reduce_through_nccl_inside_one_graph():
    assert choose_collectives(8) == "nccl"
    options = options_of(_BURST, platform="gpu", num_devices=2)
    assert options[_KERNELS] == ""
    assert "COLLECTIVES" in options["xla_gpu_enable_command_buffer"]


@pytest.mark.parametrize(
    "key", [DecodeShape(2, 64), DecodeShape(256, 64), PrefillShape(8192, 8, 64)]
)
def test_single_steps_keep_the_kernel(key):
    assert choose_collectives(1) == "kernel"
    assert _KERNELS not in options_of(key, platform="gpu", num_devices=2)


def test_one_device_and_cpus_get_no_such_options():
    assert _KERNELS not in options_of(_BURST, platform="gpu", num_devices=1)
    assert options_of(_BURST, platform="cpu", num_devices=2) == {}


def test_prefills_in_parts_ask_for_the_scheduler_that_overlaps():
    name = "xla_gpu_enable_latency_hiding_scheduler"
    assert options_of(PrefillShape(8192, 8, 64), platform="gpu", num_devices=2)[name]
    for key, devices in [(PrefillShape(1024, 8, 64), 2), (PrefillShape(8192, 8, 64), 1)]:
        assert name not in options_of(key, platform="gpu", num_devices=devices)
