"""Pictures are whole SVGs that need nothing else, in both schemes of colours."""

import re
from xml.etree import ElementTree

import pytest

from scripts.docs.pictures.strip import Bar, joined_bars, strip, time_line
from tests.profiling.synthetic import recorded, report

_RUNS = ("as always", "without CUDA graphs")
_SVG = "{http://www.w3.org/2000/svg}"


def _texts(picture):
    return list(ElementTree.fromstring(picture).iter(f"{_SVG}text"))


def test_a_picture_follows_the_readers_scheme_and_fetches_nothing():
    picture = strip(report(), time_line(recorded()))
    assert "@media (prefers-color-scheme:dark)" in picture
    assert re.findall(r"(?:href|src|url)[=(]", picture) == []


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_no_label_is_cut_off_on_the_left(scale):
    peak = {"name": "X", "bytes_per_s": 1e12, "flops_per_s": 9e14 * scale, "source": "y"}
    for each in _texts(strip(report(peak=peak), time_line(recorded()))):
        width = 6.6 * len(each.text or "")  # of the widest of usual fonts
        if each.get("text-anchor") == "end":
            assert float(each.get("x", 0)) - width >= 0, each.text


def test_a_step_has_a_bar_for_each_stretch_and_a_time_for_each_part():
    texts = [each.text for each in _texts(strip(report(), time_line(recorded())))]
    assert "device" in texts
    assert "host" in texts
    assert "mlp 0.000 ms" in texts
    assert "host: fetch 0.000 ms" in texts


def test_neighbours_of_a_part_are_one_bar():
    bars = [
        Bar(lane="device", name="mlp", start_s=0.0, seconds=1e-4),
        Bar(lane="device", name="mlp", start_s=1e-4, seconds=1e-4),
        Bar(lane="device", name="o", start_s=3e-4, seconds=1e-4),
        Bar(lane="device", name="o", start_s=6e-4, seconds=1e-4),
    ]
    assert [(bar.name, round(bar.seconds, 9)) for bar in joined_bars(bars)] == [
        ("mlp", 2e-4),
        ("o", 1e-4),
        ("o", 1e-4),
    ]


def test_the_strip_says_what_an_unrecorded_step_takes():
    timings = [{"kind": "decode", "run": run, "seconds": 0.002} for run in _RUNS]
    texts = {each.text for each in _texts(strip(report(timings=timings), time_line(recorded())))}
    said = "kernels run for 0.00 ms of a mean recorded step"
    assert f"{said}; an unrecorded one, with CUDA graphs, takes 2.00 ms" in texts
    assert said in {each.text for each in _texts(strip(report(), time_line(recorded())))}


def test_the_time_line_is_a_decodes_with_the_host_beside_it():
    bars = time_line(recorded())
    assert [bar.name for bar in bars if bar.lane == "device"] == ["mlp", "other", "sample"]
    assert [bar.name for bar in bars if bar.lane == "host"] == [
        *("detokenize", "schedule", "fetch")
    ]
