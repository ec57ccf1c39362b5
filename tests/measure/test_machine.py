"""Figures carry what they were measured on."""

import jaxinfer
from jaxinfer.measure.machine import describe_machine


def test_the_machine_is_described_by_device_and_versions():
    machine = describe_machine()
    assert machine["platform"] == "cpu"
    assert machine["num_devices"] == 8  # emulated, see conftest
    assert machine["versions"]["jaxinfer"] == jaxinfer.__version__
    assert {"python", "jax", "jaxlib", "flax"} <= machine["versions"].keys()
