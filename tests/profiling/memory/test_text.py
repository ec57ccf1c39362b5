"""Reports are printed and kept as JSON."""

import json
import re

import pytest

from jaxinfer.profiling.memory.text import bytes_text
from tests.profiling.memory.examples import GIB, report


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


def test_json_has_phases_with_their_sums():
    values = json.loads(json.dumps(report().to_dict(), allow_nan=False))
    assert values["peak_owner"] == "KV cache"
    assert values["phases"][-1]["num_bytes"] == 124 * GIB


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.00 KiB"), (1536, "1.50 KiB"), (3 << 20, "3.00 MiB"), (GIB, "1.00 GiB")],
)
def test_sizes_have_units_that_suit_them(size, text):
    assert bytes_text(size) == text
