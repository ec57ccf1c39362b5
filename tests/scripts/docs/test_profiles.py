"""A profile's record holds what the docs show, and they show the newest."""

import json

from jaxinfer.profiling import reading
from scripts import profile_record as script
from scripts.docs.pictures.strip import time_line
from scripts.docs.profiles import profile_lines, profile_pictures, profile_record
from tests.profiling.synthetic import recorded, report


def _record(platform="gpu", **changes):
    timings = [{"kind": "decode", "run": "as always", "seconds": 0.0015}]
    kept = profile_record(
        report(platform=platform, timings=timings, **changes), time_line(recorded())
    )
    machine = {"device": "NVIDIA H200", "cpu": "a CPU", "cpu_cores": 2}
    return {"kind": "profile-x", "machine": machine, "commit": "0123456789", "command": "c", **kept}


def test_a_page_shows_pictures_parts_and_timings_of_its_platform():
    page = "\n".join(profile_lines("gpu", [_record("cpu", title="slow"), _record()]))
    assert "slow" not in page
    assert "![One step over time](figures/profile-gpu-step.svg)" in page
    assert "| qkv | 1 | 0.001 | 52.1% |" in page
    assert "| mlp: dot | 1 |" in page
    assert "| decode, as always | 1.500 | 1.00 | <1% | - | - | - | - | - |" in page
    assert "| decode, recorded | 0.000 |" in page
    assert "- Bytes and operations are the least" in page


def test_the_readme_shows_a_gpu_once_there_is_one():
    cpu, gpu = _record("cpu"), _record()
    pictures = profile_pictures([cpu])
    assert set(pictures) == {
        "profile-cpu-step.svg",
        "profile-cpu-roofline.svg",
        "profile-step.svg",
    }
    assert pictures["profile-step.svg"] == pictures["profile-cpu-step.svg"]
    both = profile_pictures([gpu, cpu])
    assert both["profile-step.svg"] == both["profile-gpu-step.svg"]


def test_the_newest_record_wins():
    page = "\n".join(profile_lines("gpu", [_record(title="old"), _record(title="new")]))
    assert "new, bfloat16" in page
    assert "old" not in page


def test_the_script_keeps_machine_commit_and_the_command_that_it_is_given(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(reading, "read_recording", lambda directory: recorded())
    (tmp_path / "report.json").write_text(json.dumps(report().to_dict()))
    kept = tmp_path / "kept"
    flags = ["--name", "tiny", "--command", "jaxinfer profile", "--output-directory", str(kept)]
    assert script.main([str(tmp_path), *flags]) == 0
    (file,) = kept.iterdir()
    record = json.loads(file.read_text())
    assert record["kind"] == "profile-tiny"
    assert record["command"] == "jaxinfer profile"
    assert {"machine", "commit", "tree", "report"} <= record.keys()
    assert str(file) in capsys.readouterr().out


def test_a_directory_without_a_report_is_one_line(tmp_path, capsys):
    assert script.main([str(tmp_path), "--name", "x", "--command", "y"]) == 1
    assert "no report in" in capsys.readouterr().err
