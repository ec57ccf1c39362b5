"""The highest speeds of a device, from which an entry of `planning.devices.MEASURED` is made."""

import json

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.measure import ceilings
from scripts.kernels.ceilings import copies, main, products, reads


@pytest.mark.parametrize("calculation", reads(1 << 20), ids=lambda each: each.name)
def test_a_read_is_of_all_bytes_and_writes_few(calculation):
    x = calculation.make()
    assert x.nbytes == calculation.amount == 1 << 20
    assert jax.eval_shape(calculation.operation, x).size < x.size / 64


def test_a_copy_counts_bytes_read_and_written():
    (calculation,) = copies(1 << 20)
    x = calculation.make()
    assert calculation.operation(x).nbytes + x.nbytes == calculation.amount == 1 << 21


@pytest.mark.parametrize("calculation", products(16, "bfloat16"), ids=lambda each: each.name)
def test_a_product_is_of_random_matrices(calculation):
    x = calculation.make()
    assert (x.shape, x.dtype) == ((16, 16), jnp.bfloat16)
    assert len(set(x.ravel().tolist())) > 100
    assert calculation.operation(x).shape == (16, 16)
    assert calculation.amount == 2 * 16**3


def test_the_command_prints_the_best_of_all_that_it_tried(monkeypatch, capsys):
    for name, value in {"_CPU_BYTES": 1 << 16, "_LEAST_BYTES": 1 << 15, "_CPU_ROWS": 16}.items():
        monkeypatch.setattr(ceilings, name, value)
    monkeypatch.setattr(ceilings, "_WINDOW_S", 0.0)
    assert main() == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["data_sheet"]) == ("cpu", None)
    for name, tried in found["calculations"].items():
        assert found[name] == max(tried.values())
    assert [len(tried) for tried in found["calculations"].values()] == [10, 2, 2]
