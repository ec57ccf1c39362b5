"""A record says on which machine its figures were taken."""

import json

from scripts.measurements.results import load_results, save_result


def test_a_record_has_the_machine_with_the_speed_of_a_core_beside_its_figures(tmp_path):
    path = save_result("W1-0.6b", {"seconds": 1.5}, tmp_path)
    record = json.loads(path.read_text())
    assert (record["kind"], record["seconds"]) == ("W1-0.6b", 1.5)
    assert 0.1 < record["machine"]["python_loop_ms"] < 10_000
    assert record["machine"]["versions"]["jax"]
    assert [each["file"] for each in load_results(tmp_path)] == [path.name]
