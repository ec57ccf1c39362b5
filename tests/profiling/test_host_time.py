"""The host's time is split between the innermost spans."""

import pytest

from jaxinfer.profiling.host_time import host_seconds
from tests.profiling.synthetic import SPANS


def test_time_in_a_nested_span_counts_for_it_alone():
    seconds = host_seconds(SPANS)
    assert seconds == pytest.approx(
        {"schedule": 1e-7, "pack": 1e-7, "launch": 2e-7, "fetch": 2e-7, "detokenize": 1e-8}
    )
