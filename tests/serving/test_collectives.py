"""Which all-reduce a program gets."""

import pytest

from jaxinfer.serving.collectives import choose_collectives
from jaxinfer.serving.layout import DecodeShape, PrefillShape
from jaxinfer.serving.program_kinds.burst import BurstKey
from jaxinfer.serving.program_set import options_of

_KERNELS = "xla_gpu_experimental_use_collective_kernels"
_BURST = BurstKey(DecodeShape(2, 64), "greedy", 8)


def _options(key, platform="gpu", num_devices=2, mailboxes=False):
    return options_of(key, platform=platform, num_devices=num_devices, mailboxes=mailboxes)


def test_without_mailboxes_bursts_reduce_through_nccl_inside_one_graph():
    assert choose_collectives(8, mailboxes=False) == "nccl"
    options = _options(_BURST)
    assert options[_KERNELS] == ""
    assert "COLLECTIVES" in options["xla_gpu_enable_command_buffer"]


@pytest.mark.parametrize(
    "key", [DecodeShape(2, 64), DecodeShape(256, 64), PrefillShape(8192, 8, 64)]
)
def test_single_steps_keep_the_kernel(key):
    assert choose_collectives(1, mailboxes=False) == "kernel"
    assert _KERNELS not in _options(key)


@pytest.mark.parametrize("key", [_BURST, DecodeShape(256, 64)])
def test_with_mailboxes_nothing_is_left_to_nccl(key):
    assert choose_collectives(8, mailboxes=True) == "mailboxes"
    assert _KERNELS not in _options(key, mailboxes=True)


def test_one_device_and_cpus_get_no_such_options():
    assert _KERNELS not in _options(_BURST, num_devices=1)
    assert _options(_BURST, platform="cpu") == {}


def test_prefills_in_parts_ask_for_the_scheduler_that_overlaps():
    name = "xla_gpu_enable_latency_hiding_scheduler"
    assert _options(PrefillShape(8192, 8, 64))[name]
    for key, devices in [(PrefillShape(1024, 8, 64), 2), (PrefillShape(8192, 8, 64), 1)]:
        assert name not in _options(key, num_devices=devices)
