"""The chart has a point for each layer, at its error, and axes that say so."""

from xml.etree import ElementTree

import pytest

from jaxinfer.evaluation.chart import layer_chart

_SVG = "{http://www.w3.org/2000/svg}"


def _drawn(errors):
    root = ElementTree.fromstring(layer_chart(errors, "a <b> against c"))
    texts = [each.text for each in root.iter(f"{_SVG}text")]
    points = [
        (float(each.get("cx")), float(each.get("cy")), each[0].text)
        for each in root.iter(f"{_SVG}circle")
    ]
    return texts, points


def test_points_are_where_the_axis_says():
    errors = [0.001, 0.004, 0.003]
    texts, points = _drawn(errors)
    assert {"a <b> against c", "layer", "0", "1", "2", "0.004"} <= {*texts}
    assert any("relative error" in each for each in texts)
    (x0, low, name), (x1, high, _), (x2, middle, _) = points
    assert name == "layer 0: 0.001"
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    # 62 is 0.004 and 322 is 0.
    assert [low, high, middle] == pytest.approx([257, 62, 127], abs=0.1)


@pytest.mark.parametrize("largest", [0.0, 1e-7, 0.0999, 0.1, 0.81, 1.0, 7.0, 1234.0])
def test_every_point_is_within_the_axes(largest):
    texts, points = _drawn([largest / 2, largest])
    assert all(62 <= y <= 322 for _, y, _ in points)
    assert len({*texts[2:7]}) == 5, "ticks that read the same"


@pytest.mark.parametrize("count", [1, 16, 17, 80])
def test_labels_of_many_layers_have_room(count):
    texts, points = _drawn([0.1] * count)
    labels = [each for each in texts if each and each.isdecimal()]
    assert len(points) == count
    assert len(labels) <= 17
