"""An engine says what holds its memory."""

import pytest

from tests.serving.small_llm import small_llm


@pytest.fixture(scope="module")
def llm():
    with small_llm() as llm:
        yield llm


def test_a_report_has_weights_then_the_cache(llm):
    report = llm.memory_report()
    assert [phase.name for phase in report.phases] == [
        *("weights loaded", "KV cache allocated", "generating")
    ]
    loaded, allocated, now = report.phases
    assert loaded.num_bytes == loaded.bytes_of("weights") == llm.report.weight_bytes
    assert allocated.bytes_of("KV cache") == llm.kv_bytes
    assert allocated.bytes_of("slots") > 0
    assert now.num_bytes >= allocated.num_bytes
    assert not report.is_measured


def test_what_sleeps_holds_nothing(llm):
    llm.sleep()
    assert llm.memory_report().phases[-1].num_bytes == 0
    llm.wake_up()
    assert llm.memory_report().phases[-1].bytes_of("KV cache") == llm.kv_bytes


def test_a_closed_engine_reports_nothing():
    with small_llm() as other:
        other.close()
    with pytest.raises(RuntimeError, match="closed"):
        other.memory_report()
