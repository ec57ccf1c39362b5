"""A device's speeds are measured in queues of launches, and held against its data sheet."""

import types

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.measure import ceilings
from jaxinfer.measure.ceilings import (
    Calculation,
    Rate,
    believed_bytes_per_s,
    believed_flops_per_s,
    copies,
    measure_peak,
    measure_rates,
    products,
    queue_seconds,
    reads,
)
from jaxinfer.planning.devices import PUBLISHED, REACHED_BANDWIDTH, REACHED_MATRIX_SPEED
from jaxinfer.profiling.rows import Peak

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def _small(monkeypatch):
    for name, value in {"_CPU_BYTES": 1 << 16, "_LEAST_BYTES": 1 << 15, "_CPU_ROWS": 16}.items():
        monkeypatch.setattr(ceilings, name, value)
    monkeypatch.setattr(ceilings, "_WINDOW_S", 0.0)


def _ones_plus_one(amount: int) -> Calculation:
    return Calculation(
        name="x + 1", make=lambda: jnp.ones(8), operation=lambda x: x + 1, amount=amount
    )


def test_a_queue_is_awaited_once(monkeypatch):
    seen = []
    monkeypatch.setattr(jax, "block_until_ready", lambda result: seen.append(f"await {result}"))

    def run():
        seen.append("launch")
        return len(seen)

    assert queue_seconds(run, 3) > 0
    assert seen == ["launch", "launch", "launch", "await 3"]


def test_a_rate_is_that_of_the_best_window_of_many_launches(monkeypatch):
    calls = []

    def seconds(run, count):
        run()
        calls.append(count)
        # Three launches take 1 ms each; of the windows after the first the third is the fastest.
        return count * (1e-4 if len(calls) == 2 else 5e-4 if len(calls) == 5 else 1e-3)

    monkeypatch.setattr(ceilings, "queue_seconds", seconds)
    (rate,) = measure_rates([_ones_plus_one(1000)])
    assert rate == Rate(name="x + 1", per_s=pytest.approx(1000 / 5e-4))
    assert calls == [3, 100, 100, 100, 100, 100]


def test_queued_results_take_no_memory_of_their_own(monkeypatch):
    results = []

    def seconds(run, count):
        results.extend(run() for _ in range(2))
        return 1.0

    monkeypatch.setattr(ceilings, "queue_seconds", seconds)
    measure_rates([_ones_plus_one(1)])
    assert [result.is_deleted() for result in results] == [True] * (len(results) - 1) + [False]


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


@pytest.mark.parametrize(
    ("free", "num_bytes"), [(1 << 40, 1 << 30), (3 << 30, 1 << 29), (0, 1 << 26)]
)
def test_arrays_leave_half_of_the_free_memory(free, num_bytes):
    stats = {"bytes_limit": free + 5, "bytes_in_use": 5}
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    assert ceilings.array_bytes(device) == num_bytes


def test_a_speed_that_the_data_sheet_allows_is_believed():
    read = Rate(name="x.sum(-1)", per_s=3.0e12)
    assert believed_bytes_per_s(H100, read) == (3.0e12, "measured in this run: x.sum(-1)")
    product = Rate(name="x @ x", per_s=700e12)
    assert believed_flops_per_s(H100, "bfloat16", product)[0] == 700e12


@pytest.mark.parametrize(("measured", "text"), [(1.255e12, "1,255"), (3.4e12, "3,400")])
def test_a_memory_speed_that_the_data_sheet_contradicts_is_replaced(measured, text):
    speed, source = believed_bytes_per_s(H100, Rate(name="x", per_s=measured))
    assert speed == pytest.approx(3350e9 * REACHED_BANDWIDTH)
    assert "95% that the best kernels usually reach of the data sheet's 3,350 GB/s" in source
    assert f"the {text} GB/s measured in this run can't be right" in source


@pytest.mark.parametrize("measured", [300e12, 1000e12])
def test_a_matrix_speed_that_the_data_sheet_contradicts_is_replaced(measured):
    speed, source = believed_flops_per_s(H100, "bfloat16", Rate(name="x", per_s=measured))
    assert speed == pytest.approx(989e12 * REACHED_MATRIX_SPEED)
    assert "989 TFLOP/s" in source
    assert f"the {measured / 1e12:,.0f} TFLOP/s" in source


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("cpu", "bfloat16"),
        ("NVIDIA GH200 480GB", "bfloat16"),
        (H100, "float32"),
        ("Tesla T4", "bfloat16"),
    ],
)
def test_without_a_fitting_data_sheet_a_speed_is_believed(kind, dtype):
    assert believed_flops_per_s(kind, dtype, Rate(name="x", per_s=1e9))[0] == 1e9


@pytest.mark.usefixtures("_small")
def test_a_device_without_a_data_sheet_has_the_speeds_measured_here():
    peak = Peak(**measure_peak("float32"))
    assert peak.name == "cpu"
    assert peak.bytes_per_s > 0
    assert peak.flops_per_s > 0
    assert peak.source.startswith("memory measured in this run: x")
    assert "; matrix units measured in this run: x @ x" in peak.source


@pytest.mark.usefixtures("_small")
def test_a_peak_is_held_against_the_data_sheet(monkeypatch):
    monkeypatch.setattr(ceilings, "published_chip", lambda kind: PUBLISHED["h100"])
    peak = Peak(**measure_peak("bfloat16"))
    assert peak.bytes_per_s == pytest.approx(3350e9 * REACHED_BANDWIDTH)
    assert peak.flops_per_s == pytest.approx(989e12 * REACHED_MATRIX_SPEED)
    assert peak.source.count("can't be right") == 2
