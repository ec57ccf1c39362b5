"""The time of an adapter's way to a step: of an engine that compiles nothing meanwhile."""

import pytest

from scripts.measurements.adapters import update_lines, update_report


@pytest.mark.slow
def test_updates_are_timed_and_compile_nothing():
    report = update_report(None, engine_arguments={}, num_adapters=2, rank=4)
    assert report["num_compilations"] == 0
    assert report["update_call_s"] > 0
    assert (report["num_adapters"], report["rank"]) == (2, 4)
    assert f"the call {report['update_call_s'] * 1e3:.2f}" in update_lines(report)[-1]
