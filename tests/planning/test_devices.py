"""Devices are found by name, by numbers and by JAX's device kind."""

from jaxinfer.planning.devices import H200, find_chip


def test_a_chip_without_measured_ceilings_has_no_floor():
    assert find_chip("NVIDIA H200") is H200
    assert find_chip("cpu") is None
