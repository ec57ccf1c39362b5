"""Reports and recordings are printed, drawn and kept as JSON."""

import itertools
import json
import re
from xml.etree import ElementTree

import pytest

from jaxinfer.profiling.memory.text import bytes_text
from tests.profiling.memory.examples import GIB, recording, report

_SVG = "{http://www.w3.org/2000/svg}"


def test_a_report_is_a_table_with_its_peak():
    text = str(report())
    assert text.startswith("Memory of NVIDIA H200, in GiB of each device\n")
    assert re.search(
        r"^phase +weights +KV cache +slots +step temporaries +compile scratch", text, re.M
    )
    assert re.search(
        r"^generating +15\.00 +100\.00 +1\.00 +4\.00 +- +1\.00 +3\.00 +124\.00$", text, re.M
    )
    assert "Peak: 124.00 GiB of 140.00 GiB, generating; most of it 100.00 GiB of KV cache." in text
    assert "PrefillShape(tokens=16384)" in text


def test_a_recording_says_which_steps_held_the_most():
    text = str(recording())
    assert "1,000 steps in 9.99 s" in text
    assert "at most 999.00 MiB, 1% of the cache, at 9.99 s with 8 sequences" in text
    assert "Largest step: 1.00 GiB, 8 tokens of 8 sequences, DecodeShape(rows=8)" in text
    assert "Peak while recorded: 117.00 GiB" in text
    assert "No step ran" in str(recording(0))


def test_json_has_phases_and_samples():
    values = json.loads(json.dumps(recording(2).to_dict(), allow_nan=False))
    assert values["report"]["peak_owner"] == "KV cache"
    assert values["report"]["phases"][-1]["num_bytes"] == 124 * GIB
    assert [sample["kv_used_bytes"] for sample in values["samples"]] == [0, 2**20]


def _picture(text):
    root = ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in root.find(f"{_SVG}style").text
    assert root.find(f"{_SVG}title").text
    return root, float(root.get("width")), float(root.get("height"))


def test_a_reports_bars_are_stacked_without_gaps():
    root, _, _ = _picture(report().to_svg())
    bars = [b for b in root.findall(f"{_SVG}rect") if b.find(f"{_SVG}title") is not None]
    last = [b for b in bars if b.get("x") == bars[-1].get("x")]
    assert [b.find(f"{_SVG}title").text.split(":")[0] for b in last] == [
        *("weights", "KV cache", "slots", "step temporaries", "other", "outside")
    ]
    for below, above in itertools.pairwise(last):
        end = float(above.get("y")) + float(above.get("height"))
        assert end == pytest.approx(float(below.get("y")), abs=0.11)


@pytest.mark.parametrize("num_samples", [1, 2, 3000])
def test_a_recordings_bands_lie_in_the_picture(num_samples):
    root, width, height = _picture(recording(num_samples).to_svg())
    bands = root.findall(f"{_SVG}polygon")
    assert len(bands) == 2
    for band in bands:
        points = band.get("points").split()
        assert len(points) <= 4 * 400
        for point in points:
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_a_recording_without_steps_has_no_picture():
    with pytest.raises(ValueError, match="no step ran"):
        recording(0).to_svg()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.00 KiB"), (1536, "1.50 KiB"), (3 << 20, "3.00 MiB"), (GIB, "1.00 GiB")],
)
def test_sizes_have_units_that_suit_them(size, text):
    assert bytes_text(size) == text
