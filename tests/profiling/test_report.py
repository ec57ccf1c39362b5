"""A report says what each part and kernel takes, beside what the device can do."""

import dataclasses
import json

import pytest

from jaxinfer import ProfileReport
from jaxinfer.profiling.costs import step_costs
from jaxinfer.profiling.files import RECORDING
from jaxinfer.profiling.host_time import Timing
from jaxinfer.profiling.parts import HOST_SPANS
from jaxinfer.profiling.reading import read_report
from tests.profiling.synthetic import DECODE, PEAK, SHAPE, recording, report


def _row(rows, kind, part):
    return next(row for row in rows if (row.kind, row.part) == (kind, part))


def test_parts_have_calls_time_and_share_of_their_kind_of_step():
    row = _row(report().parts, "prefill", "qkv")
    assert (row.calls, row.seconds) == (1, pytest.approx(500e-9))
    assert row.share == pytest.approx(500 / 960)


def test_parts_are_compared_with_the_device():
    row, cost = _row(report().parts, "decode", "mlp"), step_costs(SHAPE, "bfloat16", DECODE)["mlp"]
    assert row.num_bytes == cost.num_bytes
    assert row.memory_share == pytest.approx(cost.num_bytes / 100e-9 / PEAK["bytes_per_s"])
    assert row.matrix_share == pytest.approx(cost.flops / 100e-9 / PEAK["flops_per_s"])


def test_without_a_peak_there_are_no_shares_of_it():
    row = _row(report(peak=None).parts, "decode", "mlp")
    assert row.memory_share is None
    assert row.num_bytes


def test_copies_of_a_kernel_are_one_row_and_the_longest_is_first():
    rows = [row for row in report().kernels if row.kind == "prefill"]
    assert [(row.part, row.kernel) for row in rows][:2] == [("qkv", "dot"), ("mlp", "dot")]
    assert rows[0].num_bytes is None


def test_steps_have_gaps_and_the_idle_time_before_them():
    prefill, decode = report().steps
    assert prefill.idle_before_s is None
    assert decode.idle_before_s == pytest.approx(150e-9)
    assert (decode.num_gaps, decode.gap_s) == (1, pytest.approx(50e-9))


def test_json_and_back_is_the_same():
    first = report(timings=[{"kind": "decode", "run": "as always", "seconds": 1.5}])
    assert ProfileReport.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def test_text_has_a_table_for_parts_kernels_and_timings():
    text = str(report(notes=["graphs are off"]))
    for words in ("decode, by part", "prefill, by kernel", "mlp: dot", "step, by the host's clock"):
        assert words in text
    assert "Note: graphs are off." in text


def test_recorded_steps_stand_beside_those_as_always_with_the_host_of_both():
    always = Timing(
        kind="decode", run="as always", seconds=280e-9, host=dict.fromkeys(HOST_SPANS, 1.0)
    )
    lines = str(report(timings=[dataclasses.asdict(always)])).splitlines()
    rows = {line.split()[1]: line.split() for line in lines if line.startswith("decode, ")}
    assert rows["as"][3:] == ["0.000", "1.00", "68%", *["1000.000"] * 5]
    assert rows["recorded"][2:5] == ["0.000", "0.96", "70%"]


def test_the_device_is_as_busy_in_each_step_of_a_multi_step_decode():
    always = {"kind": "decode", "run": "as always", "seconds": 95e-9}
    one = report(timings=[always])
    row = dataclasses.replace(one.steps[1], num_steps=4.0)
    lines = str(dataclasses.replace(one, steps=(one.steps[0], row))).splitlines()
    assert next(line for line in lines if line.startswith("decode, as always")).split()[5] == "50%"


def test_a_note_says_what_100_percent_is_where_it_was_measured_and_may_be_exceeded():
    source = "the best kernels on this device"
    assert f"100% is a sustained speed ({source})" in str(report(peak={**PEAK, "source": source}))
    assert "100% is" not in str(report())


def test_a_directory_gets_all_forms(tmp_path):
    report().save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.json", "report.txt"}
    assert ProfileReport.read(tmp_path) == report()


def test_a_directory_without_a_profile_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^no profile in .*: recording.json is missing$"):
        read_report(tmp_path)
    with pytest.raises(ValueError, match=r"^no report in .*: report.json is missing$"):
        ProfileReport.read(tmp_path)


def test_a_recording_without_steps_says_why(tmp_path):
    (tmp_path / RECORDING).write_text(json.dumps(recording(programs={}, cycles=[[]])))
    with pytest.raises(ValueError, match=r"no step was recorded in .*: fewer steps ran than"):
        read_report(tmp_path)
