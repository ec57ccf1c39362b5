"""A device's speeds are measured in queues of launches."""

import types

import jax
import jax.numpy as jnp
import pytest

from jaxinfer.measure import ceilings
from jaxinfer.measure.ceilings import launch_seconds, measure_peak, queue_seconds
from jaxinfer.profiling.rows import Peak


def test_a_queue_is_awaited_once(monkeypatch):
    seen = []
    monkeypatch.setattr(jax, "block_until_ready", lambda result: seen.append(f"await {result}"))

    def run():
        seen.append("launch")
        return len(seen)

    assert queue_seconds(run, 3) > 0
    assert seen == ["launch", "launch", "launch", "await 3"]


def test_a_launch_takes_the_time_of_the_best_window_of_many_launches(monkeypatch):
    calls = []

    def seconds(run, count):
        run()
        calls.append(count)
        # Three launches take 1 ms each; of the windows after the first the third is the fastest.
        return count * (1e-4 if len(calls) == 2 else 5e-4 if len(calls) == 5 else 1e-3)

    monkeypatch.setattr(ceilings, "queue_seconds", seconds)
    assert launch_seconds(lambda x: x + 1, jnp.ones(8)) == pytest.approx(5e-4)
    assert calls == [3, 100, 100, 100, 100, 100]


def test_queued_results_take_no_memory_of_their_own(monkeypatch):
    results = []

    def seconds(run, count):
        results.extend(run() for _ in range(2))
        return 1.0

    monkeypatch.setattr(ceilings, "queue_seconds", seconds)
    launch_seconds(lambda x: x + 1, jnp.ones(8))
    assert [result.is_deleted() for result in results] == [True] * (len(results) - 1) + [False]


@pytest.mark.parametrize(
    ("free", "num_bytes"), [(1 << 40, 1 << 30), (3 << 30, 1 << 29), (0, 1 << 26)]
)
def test_arrays_leave_half_of_the_free_memory(free, num_bytes):
    stats = {"bytes_limit": free + 5, "bytes_in_use": 5}
    device = types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    assert ceilings.array_bytes(device) == num_bytes


def test_a_device_without_a_data_sheet_has_the_speeds_measured_here(monkeypatch):
    for name, value in {"_CPU_BYTES": 1 << 16, "_LEAST_BYTES": 1 << 15, "_CPU_ROWS": 16}.items():
        monkeypatch.setattr(ceilings, name, value)
    monkeypatch.setattr(ceilings, "launch_seconds", lambda operation, x: 1e-3 * operation(x).ndim)
    peak = Peak(**measure_peak("float32"))
    assert peak.name == "cpu"
    assert peak.bytes_per_s == pytest.approx((1 << 16) / 1e-3)
    assert peak.flops_per_s == pytest.approx(2 * 16**3 / 2e-3)
    assert peak.source.startswith("measured in this run: sums of 0 MiB, and products of 16 x 16")
