"""Targets find their figure in the newest fitting record, and say how near it is."""

import pytest

from jaxinfer.planning.devices import H200
from scripts.docs.targets import TARGETS

_BY_FIGURE = {(target.figure, target.shape): target for target in TARGETS}


def _record(workload: str, shape: str = "0.6b", **changes):
    median = {
        "seconds": 0.4,
        "output_tokens_per_s": 13_500.0,
        "prompt_tokens_per_s": 86_000.0,
        "tpot_s": 0.0019,
        "ttft_s": 0.003,
    }
    return {
        "kind": f"{workload}-{shape}",
        "workload": workload,
        "model": f"Qwen3-{shape} shape",
        "machine": {"device": "NVIDIA H200"},
        "engine": {"tensor_parallel_size": 1},
        "runs": {"cold": {"median": median}, "warm": {"median": median | {"seconds": 0.2}}},
        "start_up_s": 50.0,
        "compiled_at_start": 100,
        "memory": {},
    } | changes


def _start(**medians):
    machine = {"device": "NVIDIA H200"}
    return {"kind": "engine-start-0.6b", "model": "Qwen3-0.6b shape", "machine": machine} | medians


@pytest.mark.parametrize(
    ("figure", "record", "value", "share"),
    [
        ("W1 output tok/s", _record("W1"), 13_500, 0.5),
        ("W3 prompt tok/s", _record("W3"), 86_000, 0.2),
        ("W2 TPOT ms", _record("W2"), 1.9, 0.5),
        ("W2 TTFT ms", _record("W2"), 3.0, 2.0),
        ("W4 warm s", _record("W4"), 0.2, 1.5),
        ("W4 cold s", _record("W4"), 0.4, None),
        ("start to ready, nothing cached, s", _start(cold_median_s=50), 50, 0.9),
        ("start to ready, programs cached, s", _start(warm_median_s=50), 50, 0.14),
        (
            "memory beyond weights, KV and the largest step, GB",
            _record("W1", memory={"other_bytes": 5 * 10**8}),
            0.5,
            2.0,
        ),
    ],
)
def test_a_figure_is_read_and_held_against_its_aim(figure, record, value, share):
    target = _BY_FIGURE[figure, "0.6b"]
    reached = target.reached([_record("W1", "4b"), record])
    assert reached is not None
    assert reached[0] == pytest.approx(value)
    assert reached[1] is record
    assert target.share(reached[0]) == (share if share is None else pytest.approx(share))


@pytest.mark.parametrize("key", ["percent_of_copy", "percent_of_4.3TBs"])
def test_attention_is_read_as_it_is_served(key):
    served = {"case": "decode/B=8 8k", "config": None, key: 88.0}
    swept = served | {"config": {"stages": 3}, key: 90.0}
    machine = {"device": "NVIDIA H200"}
    record = {"kind": "kernels", "machine": machine, "results": [swept, served]}
    target = _BY_FIGURE["decode attention, B=8 of 8k, % of 4.3 TB/s", "0.6b"]
    assert target.reached([record, record | {"results": [swept]}]) == (88.0, record)
    assert _BY_FIGURE["W1 output tok/s", "0.6b"].reached([record]) is None


def test_prefill_attention_is_read_in_operations():
    served = {"case": "prefill/1 x 8k page 16", "config": None, "tflops": 534.0}
    record = {"kind": "kernels", "machine": {"device": "NVIDIA H200"}, "results": [served]}
    target = _BY_FIGURE["prefill attention, 8k, TFLOP/s", "0.6b"]
    assert target.reached([record]) == (534.0, record)


def test_the_figures_of_bytes_name_the_copy_speed_of_the_device():
    assert H200.copy_bytes_per_s == 4.3e12
    figures = [figure for figure, _ in _BY_FIGURE if figure.startswith("decode attention")]
    assert all(figure.endswith("% of 4.3 TB/s") for figure in figures)


@pytest.mark.parametrize(
    "other",
    [
        {"model": "Qwen3-8b shape"},
        {"machine": {"device": "NVIDIA A100"}},
        {"engine": {"tensor_parallel_size": 2}},
        {"engine": {"tensor_parallel_size": 1, "data_parallel_size": 2}},
        {"workload": "W2"},
    ],
)
def test_only_one_device_of_the_kind_with_that_model_and_workload_counts(other):
    target = _BY_FIGURE["W1 output tok/s", "0.6b"]
    assert target.reached([_record("W1") | other]) is None


def test_the_newest_record_counts():
    old, new = _record("W1"), _record("W1")
    reached = _BY_FIGURE["W1 output tok/s", "0.6b"].reached([old, new])
    assert reached is not None
    assert reached[1] is new


def test_starts_measured_by_themselves_count():
    record = _record("W1") | {"cold_median_s": 50.0, "warm_median_s": 4.0}
    del record["workload"], record["runs"], record["memory"]
    for cache, seconds in (("nothing", 50), ("programs", 4)):
        reached = _BY_FIGURE[f"start to ready, {cache} cached, s", "0.6b"].reached([record])
        assert reached == (seconds, record)
    assert _BY_FIGURE["W1 output tok/s", "0.6b"].reached([record]) is None


def test_a_figure_below_zero_has_no_share():
    target = _BY_FIGURE["memory beyond weights, KV and the largest step, GB", "0.6b"]
    assert target.share(-0.5) is None


def test_the_start_before_a_workload_does_not_count():
    record = _record("W1", found_in_cache=0)
    for cache in ("nothing", "programs"):
        target = _BY_FIGURE[f"start to ready, {cache} cached, s", "0.6b"]
        assert target.reached([record]) is None


def test_memory_is_read_where_a_workload_ran():
    target = _BY_FIGURE["memory beyond weights, KV and the largest step, GB", "0.6b"]
    record = _record("W1", memory={"other_bytes": 10**8})
    del record["workload"]
    assert target.reached([record]) is None


def test_a_run_with_other_steps_a_launch_is_no_figure_of_the_default():
    default = _record("W2", command="python scripts/benchmark.py --workload W2")
    variant = _record("W2", command="python scripts/benchmark.py --num-decode-steps 1")
    reached = _BY_FIGURE["W2 TPOT ms", "0.6b"].reached([default, variant])
    assert reached is not None
    assert reached[1] is default
