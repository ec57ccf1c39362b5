"""Plots show the newest records' numbers, and carry them so that a stale one is found."""

import pytest

from scripts.docs.plots import (
    batch_floors,
    is_current,
    plot_lines,
    shown_numbers,
    update_plot,
    workload_floors,
)

_MACHINE = {"device": "NVIDIA H200", "cpu": "x"}


def _workload(seconds: float, floor: float | None = 1.0):
    shared = None if floor is None else {"total_s": 9.0, "total_shared_s": floor}
    return {
        "kind": "W1-0.6b",
        "workload": "W1",
        "model": "Qwen3-0.6b shape",
        "machine": _MACHINE,
        "runs": {"cold": {"median": {"seconds": seconds}, "floor": shared}},
    }


def _batches(*shares: float):
    speeds = [
        {"rows": 2**i, "prefill_of_floor": share / 2, "decode_of_floor": share}
        for i, share in enumerate(shares)
    ]
    model = "Qwen3-0.6b shape"
    return {"kind": "batches-0.6b", "model": model, "machine": _MACHINE, "speeds": speeds}


def test_a_plot_carries_the_newest_records_numbers(tmp_path):
    pytest.importorskip("matplotlib", reason="drawing needs the dev extra")
    records = [_workload(5.0), _workload(4.0)]
    assert not is_current("workload-floors", records, tmp_path)
    update_plot("workload-floors", records, tmp_path)
    path = tmp_path / "workload-floors.svg"
    assert shown_numbers(path) == {"Qwen3-0.6b shape, 1 x NVIDIA H200": {"W1": 0.25}}
    assert is_current("workload-floors", records, tmp_path)
    assert not is_current("workload-floors", [_workload(3.0)], tmp_path)
    assert ">W1<" in path.read_text()


def test_of_several_versions_of_jax_the_newest_is_drawn():
    old, new = (
        _workload(seconds) | {"machine": _MACHINE | {"versions": {"jax": version}}}
        for seconds, version in ((4.0, "0.9.1"), (5.0, "0.12.0.1"))
    )
    assert workload_floors([new, old]) == {"Qwen3-0.6b shape, 1 x NVIDIA H200": {"W1": 0.2}}


def test_drawing_twice_gives_the_same_file(tmp_path):
    pytest.importorskip("matplotlib", reason="drawing needs the dev extra")
    path = tmp_path / "batch-floors.svg"
    update_plot("batch-floors", [_batches(0.5, 0.6)], tmp_path)
    first = path.read_bytes()
    path.unlink()
    update_plot("batch-floors", [_batches(0.5, 0.6)], tmp_path)
    assert path.read_bytes() == first


def test_nothing_is_drawn_where_no_floor_is_known(tmp_path):
    records = [_workload(5.0, floor=None)]
    assert plot_lines("workload-floors", records) == ["Not measured yet."]
    update_plot("workload-floors", records, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_plot_of_records_that_are_gone_is_stale_and_removed(tmp_path):
    path = tmp_path / "batch-floors.svg"
    description = '{"a": {"decode": {"1": 0.5}}}'
    path.write_text(
        '<svg xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:description>{description}</dc:description></svg>"
    )
    assert not is_current("batch-floors", [], tmp_path)
    update_plot("batch-floors", [], tmp_path)
    assert not path.exists()


def test_the_page_names_what_the_picture_shows():
    (line,) = plot_lines("batch-floors", [_batches(0.5)])
    assert line.startswith("![share of the floor: Qwen3-0.6b shape, 1 x NVIDIA H200]")
    assert line.endswith("(figures/batch-floors.svg)")


def test_quantized_weights_have_lines_of_their_own():
    plain = {"kind": "batches-8b", "model": "Qwen3-8b shape", "machine": {"device": "NVIDIA H200"}}
    speeds = [{"rows": 1, "prefill_of_floor": 0.5, "decode_of_floor": 0.5}]
    plain |= {"file": "1", "time": "1", "engine": {"quantization": None}, "speeds": speeds}
    codes = plain | {"file": "2", "time": "2", "engine": {"quantization": "fp8"}}
    titles = [*batch_floors([plain]), *batch_floors([codes])]
    assert titles == [
        "Qwen3-8b shape, 1 x NVIDIA H200",
        "Qwen3-8b shape in fp8, 1 x NVIDIA H200",
    ]
