"""Attention is chosen once, for a reason that is said, and from what was measured."""

import statistics
from collections import defaultdict

import pytest

from jaxinfer.kernels.choice import RANKINGS, choose_backend
from scripts.measurements.results import RESULTS, load_results

_HOPPER = {"platform": "gpu", "compute_capability": (9, 0)}
_AMPERE = {"platform": "gpu", "compute_capability": (8, 0)}
_CPU = {"platform": "cpu", "compute_capability": None}
_DEVICES = {(9, 0): ("H200", "H100")}


@pytest.fixture
def all_packages(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


@pytest.fixture
def no_packages(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def _choose(requested, *, head_dim=128, dtype="bfloat16", block_size=16, group_size=2, **others):
    return choose_backend(
        requested,
        head_dim=head_dim,
        dtype=dtype,
        block_size=block_size,
        group_size=group_size,
        **others,
    )


def test_auto_takes_numba_on_a_cpu_for_what_it_serves():
    assert _choose("auto", dtype="float32", **_CPU) == (
        "numba",
        "fastest measured on CPUs for float32, head_dim 128, block_size 16",
    )


def test_auto_takes_xla_on_a_cpu_otherwise_and_says_why(no_packages):
    name, reason = _choose("auto", **_CPU)
    assert (name, reason.split("; ")[1]) == ("xla", "numba needs float32, not bfloat16")
    name, reason = _choose("auto", dtype="float32", **_CPU)
    assert (name, reason.split("; ")[1]) == (
        "xla",
        "numba needs the package numba (pip install 'jaxinfer[cpu]')",
    )


def test_auto_takes_the_fastest_measured_and_says_for_what(all_packages):
    assert _choose("auto", **_HOPPER) == (
        "mosaic",
        "fastest measured on compute capability 9.0 for bfloat16, head_dim 128, block_size 16",
    )


def test_auto_says_what_it_passed_over_and_why(no_packages):
    name, reason = _choose("auto", **_HOPPER)
    assert name == "mosaic"
    assert reason.endswith("; triton needs the package jax-triton (pip install 'jaxinfer[triton]')")


def test_auto_says_where_nothing_was_measured(all_packages):
    name, reason = _choose("auto", **_AMPERE)
    assert name == "triton"
    assert "nothing was measured on compute capability 8.0" in reason
    assert "mosaic needs a Hopper GPU (compute capability 9.x), not 8.0" in reason


@pytest.mark.parametrize(
    "change", [{"head_dim": 96}, {"dtype": "float32"}, {"group_size": 32}, {"block_size": 24}]
)
def test_auto_falls_to_xla_where_no_kernel_serves_the_model(change, all_packages):
    name, reason = _choose("auto", **_HOPPER, **change)
    assert name == "xla"
    assert reason.startswith("fastest that can run on compute capability 9.0")
    assert reason.count(f"not {next(iter(change.values()))}") == 2  # mosaic and triton


def test_triton_needs_its_package(no_packages):
    assert _choose("auto", **_AMPERE)[0] == "xla"
    with pytest.raises(ValueError, match="jax-triton"):
        _choose("triton", **_AMPERE)


@pytest.mark.parametrize(
    ("requested", "device", "change", "cause"),
    [
        ("mosaic", _CPU, {}, "Hopper GPU .*, not cpu"),
        ("mosaic", _AMPERE, {}, "Hopper GPU .*, not 8.0"),
        ("mosaic", {"platform": "gpu", "compute_capability": (10, 0)}, {}, "not 10.0"),
        ("mosaic", _HOPPER, {"head_dim": 80}, "head_dim 64 or 128, not 80"),
        ("mosaic", _HOPPER, {"block_size": 4}, "block_size of 8, 16, .*, not 4"),
        ("mosaic", _HOPPER, {"group_size": 17}, "at most 16 query heads per KV head, not 17"),
        ("triton", _CPU, {}, "8.0 or higher, not cpu"),
        ("numba", _HOPPER, {"dtype": "float32"}, "needs a CPU, not gpu"),
        ("numba", _CPU, {}, "needs float32, not bfloat16"),
        ("triton", {"platform": "gpu", "compute_capability": (7, 5)}, {}, "not 7.5"),
        ("triton", _HOPPER, {"dtype": "float32"}, "bfloat16 or float16, not float32"),
    ],
)
def test_an_impossible_request_is_an_error_that_lists_what_is_supported(
    requested, device, change, cause, all_packages
):
    with pytest.raises(ValueError, match=cause) as error:
        _choose(requested, **device, **change)
    assert f"attention_backend={requested!r}" in str(error.value)
    assert "; supported here (" in str(error.value)
    assert str(error.value).endswith("xla")


def test_xla_is_always_possible():
    assert _choose("xla", **_HOPPER) == ("xla", "requested")


@pytest.mark.parametrize("capability", RANKINGS)
def test_a_ranking_is_what_its_evidence_shows(capability):
    ranking = RANKINGS[capability]
    assert (RESULTS / ranking.evidence).is_file()
    (record,) = (r for r in load_results() if r["file"] == ranking.evidence)
    assert record["kind"] == "attention-backends"
    assert any(name in record["machine"]["device"] for name in _DEVICES[capability])
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for result in record["results"]:
        case, us = result["case"], result["median_microseconds"]
        of_case = times[result["backend"]]
        of_case[case] = min(us, of_case.get(case, us))
    assert set(times) == set(ranking.order)
    shared = set.intersection(*(set(of_case) for of_case in times.values()))
    assert shared, "no case that all of them ran"
    means = {
        backend: statistics.geometric_mean([of_case[case] for case in shared])
        for backend, of_case in times.items()
    }
    assert tuple(sorted(means, key=means.__getitem__)) == ranking.order


def test_an_int8_cache_is_read_by_numba_and_xla_alone(all_packages):
    cache = {"kv_cache_dtype": "int8"}
    name, reason = _choose("auto", dtype="float32", **_CPU, **cache)
    assert (name, reason.partition(",")[0]) == (
        "numba",
        "fastest measured on CPUs for float32 with int8 KV cache",
    )
    name, reason = _choose("auto", **_HOPPER, **cache)
    assert name == "xla"
    assert "; mosaic reads no int8 KV cache; triton reads no" in reason
    for requested in ("mosaic", "triton"):
        with pytest.raises(ValueError, match=f"attention_backend='{requested}' reads no int8"):
            _choose(requested, **_HOPPER, **cache)
