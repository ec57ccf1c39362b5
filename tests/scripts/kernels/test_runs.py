"""Kernels' cases say what they cost, and their times become figures; a failure ends no other."""

import pytest

from jaxinfer.planning.devices import H200
from scripts.kernels import runs as kernel_runs
from scripts.kernels.cases import COMPARED_CASES, Case, kernel_cases
from scripts.kernels.runs import (
    kernel_line,
    measure_kernels,
    percent_of_copy,
    reached,
)


@pytest.mark.parametrize(
    ("case", "work"),
    [
        (Case("decode", (100, 28), H=4, K=2, D=64), ("bytes", 128 * 2 * 64 * 2 * 2)),
        # Of five tokens the last two attend: to four and to five, the diagonal counted by half.
        (Case("prefill", (5,), (2,), H=4, D=64), ("operations", 4 * 4 * 64 * 8)),
        (Case("write", None, tokens=3, H=4, K=2, D=64), ("bytes", 3 * 8 * 64 * 4)),
        (Case("add_norm/T=3", None, tokens=3, columns=64), ("bytes", 3 * 64 * 2 * 4)),
        (Case("silu_mul/T=3", None, tokens=3, columns=64), ("bytes", 3 * 64 * 2 * 3)),
        (Case("q, k, v", None, tokens=3, columns=64, features=(32, 16)), ("bytes", 48 * 64 * 2)),
    ],
)
def test_the_work_of_a_case(case, work):
    assert case.work == work


def test_names_tell_cases_apart():
    names = [case.name for case in kernel_cases()]
    assert len(set(names)) == len(names)
    assert set(COMPARED_CASES) < set(names)


def test_without_a_hopper_gpu_there_is_nothing_to_time():
    with pytest.raises(ValueError, match=r"compute capability 9.0 \(Hopper\); this is cpu"):
        next(measure_kernels(repeats=1))


@pytest.fixture
def _any_device(monkeypatch):
    monkeypatch.setattr(kernel_runs, "_check_device", lambda: None)
    monkeypatch.setattr(kernel_runs, "_MEASURED_S", 0.0)


@pytest.mark.usefixtures("_any_device")
def test_times_become_figures(monkeypatch):
    calls = []
    monkeypatch.setattr(kernel_runs, "find_chip", lambda kind: H200)

    def make_chain(case, launches, backend, config):
        assert (backend, config) == ("mosaic", None)
        return lambda: calls.append((case.name, launches))

    monkeypatch.setattr(kernel_runs, "make_chain", make_chain)
    results = list(measure_kernels("8k", repeats=3))
    assert [result["case"] for result in results] == [
        "decode/B=8 8k", "decode/B=1 8k", "prefill/1 x 8k page 16", "prefill/1 x 8k page 64",
        "decode/B=8 8k fp8", "prefill/1 x 8k page 16 fp8",
    ]  # fmt: skip
    for result in results:
        assert len(result["microseconds"]) == 3
        assert result["median_microseconds"] == sorted(result["microseconds"])[1]
        assert "failed" not in kernel_line(result)
    assert ("decode/B=8 8k", 24) in calls
    assert ("prefill/1 x 8k page 16", 8) in calls
    decode, prefill = results[0], results[2]
    rate = decode["bytes"] / decode["median_microseconds"] * 1e6
    assert decode["bytes_per_s"] == rate
    assert decode["copy_bytes_per_s"] == H200.copy_bytes_per_s
    assert percent_of_copy(decode) == pytest.approx(rate / 4.3e12 * 100)
    assert reached(decode).endswith("% of 4.3 TB/s")
    rate = prefill["operations"] / prefill["median_microseconds"] * 1e6
    assert prefill["tflops"] == pytest.approx(rate / 1e12)
    assert results[4]["bytes"] == decode["bytes"] / 2
    assert percent_of_copy(prefill) is None


@pytest.mark.usefixtures("_any_device")
def test_without_a_known_copy_speed_the_bytes_stand_alone(monkeypatch):
    monkeypatch.setattr(kernel_runs, "make_chain", lambda *_: lambda: None)
    (result,) = measure_kernels("decode/B=64 fp8", repeats=1)
    assert percent_of_copy(result) is None
    assert reached(result | {"bytes_per_s": 2.8004e12}) == "2,800 GB/s"


def test_a_share_names_the_copy_speed_that_it_is_of():
    result = {"bytes_per_s": 2.7e12, "copy_bytes_per_s": 3.0e12, "percent_of_copy": 90.0}
    assert reached(result) == "90.0% of 3 TB/s"
    assert reached({"percent_of_4.3TBs": 88.26}) == "88.3% of 4.3 TB/s"


@pytest.mark.usefixtures("_any_device")
def test_a_variant_that_cannot_run_ends_no_other(monkeypatch):
    def make_chain(case, launches, backend, config):
        if backend == "triton":
            raise ValueError("no\nsuch kernel")
        return lambda: None

    monkeypatch.setattr(kernel_runs, "make_chain", make_chain)
    results = list(
        measure_kernels(
            "decode/B=64 fp8", repeats=1, variants=lambda case: [("triton", None), ("xla", None)]
        )
    )
    assert [result["backend"] for result in results] == ["triton", "xla"]
    assert results[0]["error"] == "no such kernel"
    assert "failed: no such kernel" in kernel_line(results[0])
    assert "error" not in results[1]


@pytest.mark.usefixtures("_any_device")
def test_an_unknown_case_is_an_error_that_lists_the_known():
    with pytest.raises(ValueError, match=r"no kernel case contains 'nosuch'.*decode/B=64"):
        next(measure_kernels("nosuch", repeats=1))
