"""Reports and recordings are printed and kept as JSON."""

import json
import re

import pytest

from jaxinfer.profiling.memory.text import bytes_text
from tests.profiling.memory.examples import GIB, recording, report


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


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.00 KiB"), (1536, "1.50 KiB"), (3 << 20, "3.00 MiB"), (GIB, "1.00 GiB")],
)
def test_sizes_have_units_that_suit_them(size, text):
    assert bytes_text(size) == text
