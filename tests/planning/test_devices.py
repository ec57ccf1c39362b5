"""Devices are found by name, by numbers and by JAX's device kind."""

import re

import pytest

from jaxinfer.planning.devices import (
    DEVICES,
    H200,
    MEASURED,
    PUBLISHED,
    find_chip,
    find_device,
    published_chip,
)


def test_a_chip_without_measured_ceilings_has_no_floor():
    assert find_chip("NVIDIA H200") is H200
    assert find_chip("NVIDIA A10") is None
    assert find_chip("cpu") is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A10", "A10"),
        ("Tesla T4", "T4"),
    ],
)
def test_jaxs_device_kind_leads_to_the_data_sheet(kind, name):
    chip = published_chip(kind)
    assert chip is not None
    assert chip.name == name
    assert not chip.measured


@pytest.mark.parametrize(
    "kind",
    [
        "cpu",
        "NVIDIA GH200 480GB",
        "NVIDIA H200 NVL",
        "NVIDIA H200 MIG 1g.18gb",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 D",
    ],
)
def test_a_device_that_only_resembles_a_known_one_is_unknown(kind):
    assert published_chip(kind) is None
    assert find_chip(kind) is None


@pytest.mark.parametrize("key", MEASURED)
def test_measured_speeds_are_those_of_a_published_chip_and_below_them(key):
    published, measured = PUBLISHED[key], MEASURED[key]
    assert (measured.name, measured.memory_bytes) == (published.name, published.memory_bytes)
    assert measured.measured
    assert published.bytes_per_s / 2 < measured.bytes_per_s < published.bytes_per_s
    assert published.flops_per_s / 2 < measured.flops_per_s < published.flops_per_s
    assert measured.copy_bytes_per_s is not None
    assert published.bytes_per_s / 2 < measured.copy_bytes_per_s < published.bytes_per_s


def test_plans_take_an_h200s_measured_speeds_and_the_others_published_ones():
    assert [key for key, chip in DEVICES.items() if chip.measured] == ["h200"]
    assert all(DEVICES[key] is chip for key, chip in PUBLISHED.items() if key != "h200")


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
