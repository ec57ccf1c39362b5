"""Which all-reduce a program gets."""

import pytest

from jaxinfer.serving.programs.collectives import choose_collectives
from jaxinfer.serving.programs.kinds.multi_step_decode import MultiStepDecodeKey
from jaxinfer.serving.programs.layout import DecodeShape, PrefillShape
from jaxinfer.serving.programs.program_set import options_of

_KERNELS = "xla_gpu_experimental_use_collective_kernels"
_MULTI_STEP = MultiStepDecodeKey(DecodeShape(2, 64), "greedy", 8)


def _options(key, platform="gpu", num_devices=2, peer_buffers=False):
    return options_of(key, platform=platform, num_devices=num_devices, peer_buffers=peer_buffers)


def test_without_peer_buffers_multi_step_decodes_reduce_through_nccl_inside_one_graph():
    assert choose_collectives(8, peer_buffers=False) == "nccl"
    options = _options(_MULTI_STEP)
    assert options[_KERNELS] == ""
    assert "COLLECTIVES" in options["xla_gpu_enable_command_buffer"]


@pytest.mark.parametrize(
    "key", [DecodeShape(2, 64), DecodeShape(256, 64), PrefillShape(8192, 8, 64)]
)
def test_single_steps_keep_the_kernel(key):
    assert choose_collectives(1, peer_buffers=False) == "kernel"
    assert _KERNELS not in _options(key)


@pytest.mark.parametrize("key", [_MULTI_STEP, DecodeShape(256, 64)])
def test_with_peer_buffers_nothing_is_left_to_nccl(key):
    assert choose_collectives(8, peer_buffers=True) == "peer_buffers"
    assert _KERNELS not in _options(key, peer_buffers=True)


def test_one_device_and_cpus_get_no_such_options():
    assert _KERNELS not in _options(_MULTI_STEP, num_devices=1)
    assert _options(_MULTI_STEP, platform="cpu") == {}


def test_prefills_in_parts_ask_for_the_scheduler_that_overlaps():
    name = "xla_gpu_enable_latency_hiding_scheduler"
    assert _options(PrefillShape(8192, 8, 64))[name]
    for key, devices in [(PrefillShape(1024, 8, 64), 2), (PrefillShape(8192, 8, 64), 1)]:
        assert name not in _options(key, num_devices=devices)
