"""Devices are found by name, by numbers and by JAX's device kind."""

import re

import pytest

from jaxinfer.planning.devices import DEVICES, H200, find_chip, find_device


def test_a_chip_without_measured_ceilings_has_no_floor():
    assert find_chip("NVIDIA H200") is H200
    assert find_chip("cpu") is None


@pytest.mark.parametrize("name", ["h100", "H100-SXM", " h100 "])
def test_names_and_aliases_are_found_in_any_case(name):
    assert find_device(name) is DEVICES["h100"]


def test_a_device_is_its_numbers():
    device = find_device("24:600:125")
    assert (device.memory_bytes, device.bytes_per_s) == (24 * 2**30, 600e9)
    assert device.flops_per_s == 125e12
    assert not device.measured


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h300", "unknown device 'h300'; there are h200, h100"),
        ("24:600", "MEMORY_GIB:GB_PER_S:TFLOPS"),
        ("a:b:c", "MEMORY_GIB:GB_PER_S:TFLOPS"),
        ("nan:600:125", "memory in GiB must be from 0.1"),
        ("24:0:125", "bandwidth in GB/s must be from 1 "),
        ("24:600:inf", "matrix speed in TFLOP/s must be from 0.1"),
    ],
)
def test_other_devices_are_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        find_device(text)
