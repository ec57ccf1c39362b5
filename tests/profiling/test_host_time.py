"""Steps by the host's clock: from their scheduling until they are read, and the work for each."""

import pytest

from jaxinfer.profiling.host_time import StepTime, own_seconds, step_times, timings
from jaxinfer.profiling.trace.xplane import Span
from tests.profiling.synthetic import SPANS

_LAUNCHES = (("prefill", 1), ("decode", 1))
_PREFILL, _DECODE = step_times(SPANS, _LAUNCHES)


def test_a_step_lasts_from_its_scheduling_until_it_is_read():
    assert _PREFILL.kind == "prefill"
    assert _PREFILL.seconds == pytest.approx((2290 - 500) * 1e-9)


def test_a_step_that_was_launched_ahead_lasts_from_the_end_of_the_one_before():
    assert _DECODE.kind == "decode"
    assert _DECODE.seconds == pytest.approx((2560 - 2290) * 1e-9)


def test_a_launch_that_waits_for_the_device_is_part_of_the_step():
    spans = [Span("schedule", 0, 10), Span("launch", 10, 900), Span("fetch", 920, 30)]
    (step,) = step_times(spans, [("prefill", 1)])
    assert step.seconds == pytest.approx(950e-9)


def test_work_counts_for_the_step_that_it_is_done_for():
    assert _PREFILL.parts == pytest.approx(
        {"schedule": 1e-7, "pack": 1e-7, "launch": 2e-7, "fetch": 1.19e-6, "detokenize": 1e-8}
    )
    assert _DECODE.parts == pytest.approx(
        {"schedule": 2e-8, "pack": 3e-8, "launch": 7e-8, "fetch": 2.5e-7, "detokenize": 1.5e-8}
    )


def test_a_step_that_was_launched_and_not_read_is_left_out():
    assert step_times(SPANS[:-2], _LAUNCHES) == [_PREFILL]


def test_time_in_a_nested_span_counts_for_it_alone_however_spans_are_sorted():
    own = {(span.name, span.start_ns): seconds for span, seconds in own_seconds(SPANS[::-1])}
    assert own["launch", 600] == pytest.approx(2e-7)
    assert own["pack", 650] == pytest.approx(1e-7)
    assert own["schedule", 950] == pytest.approx(2e-8)


def test_a_timing_is_the_median_of_its_kind():
    steps = [_PREFILL, *(StepTime("decode", 1, s, _DECODE.parts) for s in (5.0, 1.0, 2.0))]
    prefill, decode = timings(steps, "as always")
    assert (prefill.kind, prefill.run, prefill.seconds) == (
        "prefill",
        "as always",
        _PREFILL.seconds,
    )
    assert decode.seconds == 2.0
    assert decode.host["pack"] == pytest.approx(3e-8)


def test_of_a_multi_step_decode_each_step_is_timed():
    (decode,) = timings([StepTime("decode", 4, 2.0, _DECODE.parts)], "as always")
    assert decode.seconds == 0.5
    assert decode.host["pack"] == pytest.approx(7.5e-9)
