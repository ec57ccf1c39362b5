"""The benchmark of tiers runs workloads of which nothing is evicted."""

import pytest

from scripts.speed.tier_workloads import tier_workloads_lines, tier_workloads_report


@pytest.mark.slow
def test_workloads_run_without_tiers_and_with_them():
    arguments = {"model": "bundled", "show_progress": False, "max_num_batched_tokens": 512}
    report = tier_workloads_report(None, ["W2"], engine_arguments=arguments, repeats=2)
    case = report["workloads"]["W2"]
    assert len(case["off"]) == len(case["on"]) == 2
    assert case["ratio"] == pytest.approx(sum(case["on"]) / sum(case["off"]))
    assert report["engine"]["kv_offloading_size"] == 1.0
    assert report["num_compilations"] == report["copied_bytes"] == 0
    assert any(line.startswith("W2: ") for line in tier_workloads_lines(report))
