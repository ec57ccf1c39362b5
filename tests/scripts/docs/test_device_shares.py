"""The picture of what devices hold is drawn by its script, and shows what is divided."""

import pytest

from scripts.docs.device_shares import FILE, KINDS, draw


def test_the_picture_is_up_to_date():
    assert FILE.read_text() == draw(), "run: python -m scripts.docs.device_shares"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_both_devices_together_hold_everything(kind):
    for held in (kind.weights, kind.pages):
        cells = [(row, column) for row in range(4) for column in range(4)]
        assert all(held(0, *cell) or held(1, *cell) for cell in cells)
