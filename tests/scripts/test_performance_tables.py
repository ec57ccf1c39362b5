"""The docs' tables say what the kept records say, and nothing else."""

import pytest

from scripts import performance_tables
from scripts.docs.tables import TABLES
from scripts.docs.targets import TARGETS
from scripts.measurements.results import RESULTS, load_results, save_result
from scripts.performance_tables import DOCS, FIGURES, PARTS, check_marks, fill_page, main


def _machine(jax: str = "0.11.2", **changes):
    return {"device": "NVIDIA H200", "cpu": "x", "versions": {"jax": jax}} | changes


def _workload(workload: str, seconds: float, **changes):
    machine = _machine()
    run = {
        "median": {
            "seconds": seconds,
            "output_tokens_per_s": 100 / seconds,
            "prompt_tokens_per_s": 200 / seconds,
            "ttft_s": 0.01,
            "tpot_s": None,
        },
        "spread": 1.01,
        "repeats": [{"num_cached_tokens": cached, "num_prompt_tokens": 200} for cached in (0, 50)],
        "floor": {"total_s": 1.0, "total_shared_s": 0.5},
    }
    record = {
        "kind": f"{workload}-0.6b",
        "workload": workload,
        "model": "Qwen3-0.6b shape",
        "attention_backend": "mosaic",
        "machine": machine,
        "engine": {"tensor_parallel_size": 1},
        "runs": {"cold": run},
        "num_compilations": 0,
        "commit": "0123456789abcdef+changes",
        "start_up_s": 20.0,
        "compiled_at_start": 30,
        "device_time": {"kinds": {"attention": 0.75, "other": 0.25}},
        "memory": {"kv_bytes": 10**9, "kv_share": 0.5, "peak_bytes": None},
    }
    return record | changes


EMPTY = "".join(f"<!-- {mark} -->\n<!-- end -->\n" for mark in PARTS)


def test_the_page_and_its_plots_are_up_to_date():
    assert main(["--check"]) == 0


def test_a_page_or_a_plot_that_is_not_up_to_date_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(performance_tables, "FIGURES", tmp_path)
    assert main(["--check"]) == 1
    monkeypatch.setattr(performance_tables, "FIGURES", FIGURES)
    stale = tmp_path / "performance.md"
    stale.write_text(EMPTY)
    monkeypatch.setattr(performance_tables, "DOCS", tmp_path)
    assert main(["--check"]) == 1
    assert stale.read_text() == EMPTY


def test_the_newest_record_of_a_kind_wins():
    page = fill_page(EMPTY, [_workload("W1", 4.0), _workload("W2", 3.0), _workload("W1", 2.0)])
    assert "| 2.000 | 50 | 100 | 10.0 | - | 50% | 25% | 1.010 | 25% | - | 0 | 0123456+ |" in page
    assert "| 4.000 |" not in page
    assert page.index("| W1 |") < page.index("| W2 |")


def test_the_clock_stands_beside_the_figures_that_it_was_read_with():
    page = fill_page(EMPTY, [_workload("W1", 2.0, clocks={"sm_mhz": 1410.0})])
    assert "| 1.010 | 25% | 1,410 | 0 | 0123456+ |" in page


def test_minor_versions_of_jax_stand_side_by_side_the_newest_last():
    versions = ("0.12.0.1", "0.9.1", "0.11.2")
    records = [
        _workload("W1", float(seconds), machine=_machine(version))
        for seconds, version in enumerate(versions, start=1)
    ]
    page = fill_page(EMPTY, records)
    rows = [
        "| 1 x NVIDIA H200 | 0.9.1 | mosaic | 2.000 |",
        "| 1 x NVIDIA H200 | 0.11.2 | mosaic | 3.000 |",
        "| 1 x NVIDIA H200 | 0.12.0.1 | mosaic | 1.000 |",
    ]
    assert sorted(rows, key=page.index) == rows


def test_a_patch_release_of_jax_takes_the_place_of_the_one_before():
    page = fill_page(
        EMPTY,
        [
            _workload("W1", 4.0, machine=_machine("0.11.2")),
            _workload("W1", 2.0, machine=_machine("0.11.3")),
        ],
    )
    assert "| 0.11.3 | mosaic | 2.000 |" in page
    assert "0.11.2" not in page


def test_a_target_says_with_which_jax_it_was_reached():
    records = [_workload("W1", 4.0), _workload("W1", 2.0, machine=_machine("0.12.0.1"))]
    page = fill_page(EMPTY, records)
    assert "| 50 | <1% | 23,400 | 21,030 | 0.12.0.1 | 0123456+ |" in page


def test_every_table_of_records_says_with_which_jax():
    of_trees = ("gpu-check", "exhaustive")  # which say it above their tables
    heads = [table(load_results())[0] for name, table in TABLES.items() if name not in of_trees]
    assert all("| jax |" in head for head in heads)


def test_another_mesh_is_another_row():
    two = _workload("W1", 3.0, engine={"tensor_parallel_size": 2})
    page = fill_page(EMPTY, [_workload("W1", 4.0), two])
    assert "1 x NVIDIA H200" in page
    assert "2 x NVIDIA H200" in page


def test_the_devices_of_all_replicas_are_counted():
    four = _workload("W1", 3.0, engine={"tensor_parallel_size": 2, "data_parallel_size": 2})
    page = fill_page(EMPTY, [_workload("W1", 4.0), four])
    assert "| 1 x NVIDIA H200 | 0.11.2 | mosaic | 4.000" in page
    assert "| 4 x NVIDIA H200 (2 tensor x 2 data) | 0.11.2 | mosaic | 3.000" in page


def test_batches_are_listed_with_their_share_of_the_floor():
    speed = {
        "rows": 64,
        "prompt_tokens": 512,
        "prefill_tokens_per_s": 1e5,
        "prefill_of_floor": 0.25,
        "decode_step_s": 0.002,
        "decode_tokens_per_s": 32_000.0,
        "decode_of_floor": None,
    }
    record = _workload("W1", 1.0) | {"kind": "batches-0.6b", "speeds": [speed]}
    del record["workload"]
    page = fill_page(EMPTY, [record])
    assert "| 64 | 512 | 100,000 | 25% | 2.000 | 32,000 | - | 0123456+ |" in page


def test_a_kernel_is_listed_in_the_fastest_configuration_of_its_newest_record():
    slow = {"case": "decode", "config": {"stages": 2}, "median_microseconds": 9.0, "tflops": 100.0}
    fast = slow | {"config": {"stages": 3}, "median_microseconds": 8.0, "tflops": 120.0}
    older = slow | {"config": None, "median_microseconds": 7.0, "tflops": 130.0}
    other = older | {"case": "prefill"}
    failed = {"case": "decode", "config": None, "error": "no memory"}
    page = fill_page(EMPTY, [_kernels([older, other]), _kernels([slow, fast, failed])])
    assert "| decode | NVIDIA H200 | 0.11.2 | stages 3 | 8.0 | 120 TFLOP/s | 0123456 |" in page
    assert "| prefill | NVIDIA H200 | 0.11.2 | own choice | 7.0 | 130 TFLOP/s | 0123456 |" in page
    assert page.count("| decode |") == 1


def test_a_kernels_devices_and_minor_versions_of_jax_are_rows_of_their_own():
    result = {"case": "decode", "config": None, "median_microseconds": 8.0}
    share = {"percent_of_copy": 90.0, "copy_bytes_per_s": 3e12}
    records = [
        _kernels([result | {"percent_of_4.3TBs": 80.0}]),
        _kernels([result | share], device="NVIDIA H100 80GB HBM3"),
        _kernels([result | {"percent_of_4.3TBs": 85.0}], jax="0.12.0.1"),
    ]
    for kind in ("kernels", "attention-backends"):
        backend = [
            record | {"kind": kind, "results": [{"backend": "own choice", **each}]}
            for record in records
            for each in record["results"]
        ]
        page = fill_page(EMPTY, backend)
        assert "| NVIDIA H200 | 0.11.2 | own choice | 8.0 | 80.0% of 4.3 TB/s |" in page
        assert "| NVIDIA H200 | 0.12.0.1 | own choice | 8.0 | 85.0% of 4.3 TB/s |" in page
        assert "| NVIDIA H100 80GB HBM3 | 0.11.2 | own choice | 8.0 | 90.0% of 3 TB/s |" in page


def test_implementations_of_attention_stand_side_by_side():
    mosaic = {"case": "decode", "backend": "mosaic", "config": None, "tflops": 100.0}
    mosaic |= {"median_microseconds": 8.0}
    failed = {"case": "decode", "backend": "xla", "config": None, "error": "no memory"}
    record = _kernels([mosaic, failed]) | {"kind": "attention-backends"}
    page = fill_page(EMPTY, [record])
    assert "| decode | NVIDIA H200 | 0.11.2 | mosaic | 8.0 | 100 TFLOP/s | 0123456 |" in page
    assert "| decode | NVIDIA H200 | 0.11.2 | xla | - | no memory | 0123456 |" in page


def _kernels(results, **machine):
    machine = _machine(**machine)
    return {"kind": "kernels", "commit": "0123456789", "machine": machine, "results": results}


def test_the_gpus_time_is_listed_by_kind():
    assert "attention 75.0%, other 25.0%" in fill_page(EMPTY, [_workload("W1", 4.0)])


def test_filling_twice_changes_nothing():
    records = [_workload("W1", 4.0)]
    once = fill_page(EMPTY, records)
    assert fill_page(once, records) == once


def test_tables_without_records_say_so():
    assert fill_page(EMPTY, []).count("Not measured yet.") == len(PARTS) - 1
    assert fill_page(EMPTY, []).count("| not measured |") == len(TARGETS)


@pytest.mark.parametrize("pages", [["nothing here"], [EMPTY, EMPTY]])
def test_a_part_without_a_place_of_its_own_is_an_error(pages):
    with pytest.raises(ValueError, match="places in the docs for table"):
        check_marks(pages)


def test_a_mark_without_an_end_is_an_error():
    with pytest.raises(ValueError, match="table targets has no end"):
        fill_page("<!-- table targets -->\n", [])


def test_a_kept_record_names_machine_commit_and_command(tmp_path):
    path = save_result("W1-0.6b", {"figure": 3}, tmp_path)
    (record,) = load_results(tmp_path)
    assert path.name.endswith("-w1-0.6b.json")
    assert record["figure"] == 3
    assert {"kind", "time", "commit", "tree", "command", "machine"} <= record.keys()


def test_results_are_kept_in_the_repository():
    assert RESULTS.relative_to(DOCS.parent).as_posix() == "benchmarks/results"


def test_a_gpu_check_is_shown_with_the_tree_that_it_checked():
    check = {
        "kind": "gpu-check",
        "tree": "0123456789abcdef",
        "time": "2026-11-23T10:00:00+00:00",
        "seconds": 141.6,
        "machine": _machine(num_devices=1, driver="580.1"),
        "passed_on": [{"jax": "0.11.2"}, {"jax": "0.12.0.1"}],
        "rows": [
            {"name": "groups", "what": "512 tokens", "good": True},
            {"name": "  abort", "what": "2 blocks are still held", "good": False},
        ],
    }
    page = fill_page(EMPTY, [check])
    ran = "1 x NVIDIA H200, driver 580.1, jax 0.11.2, 2026-11-23, 142 s. "
    ran += "Passed on jax 0.11.2 and 0.12.0.1."
    assert f"`0123456789ab` of `jaxinfer/`, {ran}" in page
    assert "| groups | 512 tokens | good |\n| abort | 2 blocks are still held | BAD |" in page
