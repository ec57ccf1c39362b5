"""Memory is drawn as whole SVGs: phases stacked by owner, and steps over time."""

import itertools
from xml.etree import ElementTree

import pytest

from scripts.docs.pictures.memory import phases_picture, samples_picture
from tests.profiling.memory.examples import report
from tests.scripts.measurements.recorded_memory import recording

_SVG = "{http://www.w3.org/2000/svg}"


def _drawn(num_samples):
    recorded = recording(num_samples)
    return samples_picture(recorded.samples, kv_bytes=recorded.kv_bytes)


def _picture(text):
    root = ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in root.find(f"{_SVG}style").text
    assert root.find(f"{_SVG}title").text
    return root, float(root.get("width")), float(root.get("height"))


def test_a_reports_bars_are_stacked_without_gaps():
    root, _, _ = _picture(phases_picture("NVIDIA H200", report().phases))
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
    root, width, height = _picture(_drawn(num_samples))
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
        _drawn(0)
