"""A percentage says all and none only where that is so; tables are aligned."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxinfer
from jaxinfer.profiling.figures import aligned, share_text


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0, 0, "0%"),
        (0.004, 0, "<1%"),
        (0.006, 0, "1%"),
        (0.5, 0, "50%"),
        (0.994, 0, "99%"),
        (0.995, 0, ">99%"),
        (0.9999, 0, ">99%"),
        (1, 0, "100%"),
        (1.07, 0, "107%"),
        (0.9949, 1, "99.5%"),
        (0.9996, 1, ">99.9%"),
        (0.0004, 1, "<0.1%"),
        (0.99996, 2, ">99.99%"),
        (0.9999, 2, "99.99%"),
    ],
)
def test_all_and_none_are_said_only_of_all_and_none(share, digits, text):
    assert share_text(share, digits) == text


@given(st.floats(0, 1), st.integers(0, 3))
def test_a_percentage_is_as_near_as_it_says(share, digits):
    text = share_text(share, digits)
    assert (float(text[:-1]) == 100) == (share == 1) if text[0] not in "<>" else 0 < share < 1
    assert (float(text[:-1]) == 0) == (share == 0) if text[0] not in "<>" else 0 < share < 1
    value = float(text.strip("<>%"))
    assert abs(value - 100 * share) <= (1.0 if text[0] in "<>" else 0.51) * 10**-digits


def test_no_other_code_rounds_shares():
    root = Path(jaxinfer.__file__).parents[1]
    files = [path for room in ("jaxinfer", "scripts") for path in (root / room).rglob("*.py")]
    rounding = {path.name for path in files if re.search(r":[^{}\"']*\d%\}", path.read_text())}
    # The plan's is how far off an expectation may be.
    assert rounding - {"figures.py"} == {"notes.py"}


def test_columns_are_aligned_as_asked_without_white_space_at_the_end():
    rows = [("part", "ms", "note"), ("attention", "1.5", ""), ("mlp", "12.25", "x")]
    assert aligned(rows, last_left=True) == [
        "part          ms  note",
        "attention    1.5",
        "mlp        12.25  x",
    ]
    assert aligned(rows, left=0)[2] == "      mlp  12.25     x"
