"""The roofline is a whole SVG, in which every part and its name can be seen."""

import dataclasses
import re
from xml.etree import ElementTree

import pytest

from jaxinfer.profiling.parts import PARTS
from jaxinfer.profiling.report import WorkRow
from scripts.docs.pictures.roofline import roofline
from tests.profiling.synthetic import report

_SVG = "{http://www.w3.org/2000/svg}"


def _texts(picture):
    return list(ElementTree.fromstring(picture).iter(f"{_SVG}text"))


def test_it_follows_the_readers_scheme_and_fetches_nothing():
    picture = roofline(report())
    assert "@media (prefers-color-scheme:dark)" in picture
    assert re.findall(r"(?:href|src|url)[=(]", picture) == []


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_no_label_is_cut_off_on_the_left(scale):
    peak = {"name": "X", "bytes_per_s": 1e12, "flops_per_s": 9e14 * scale, "source": "y"}
    for each in _texts(roofline(report(peak=peak))):
        width = 6.6 * len(each.text or "")  # of the widest of usual fonts
        if each.get("text-anchor") == "end":
            assert float(each.get("x", 0)) - width >= 0, each.text


def test_every_part_with_operations_is_below_the_roof():
    texts = {each.text for each in _texts(roofline(report()))}
    assert {"qkv", "mlp", "sample", "decode: operations a second"} <= texts


def test_names_on_a_roofline_are_over_no_dot_and_no_other_name():
    same = {"calls": 1.0, "seconds": 1e-4, "share": 0.1, "kind": "decode"}
    parts = tuple(
        WorkRow(part=part, num_bytes=1e6, flops=factor * 1e6, **same)
        for factor, part in enumerate(PARTS, start=20)
    )
    root = ElementTree.fromstring(roofline(dataclasses.replace(report(), parts=parts)))
    dots = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{_SVG}circle")]
    names = [
        (float(t.get("x", 0)), float(t.get("y", 0)), t.text or "")
        for t in root.iter(f"{_SVG}text")
        if t.text in PARTS
    ]
    assert len(dots) == len(names) == len(PARTS)
    for index, (x, y, name) in enumerate(names):
        for across, up in dots:
            assert not (x < across + 4 and across - 4 < x + 6 * len(name) and abs(up - y + 4) < 8)
        for x2, y2, other in names[:index]:
            assert abs(y - y2) >= 12 or x + 6 * len(name) <= x2 or x2 + 6 * len(other) <= x


def test_a_roofline_needs_a_peak():
    with pytest.raises(ValueError, match="a roofline needs the device's speeds"):
        roofline(report(peak=None))
