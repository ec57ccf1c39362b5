import pytest

from scripts.speed.device_time import summarize


def test_kernels_are_added_up_by_name_and_kind():
    events = [
        ("paged_decode_attention_3", 3.0),
        ("paged_decode_attention", 3.0),
        ("gemm_fusion_dot.12", 2.0),
        ("nvjet_tst_128x256", 1.0),
        ("loop_add_fusion", 1.0),
    ]
    summary = summarize(events)
    assert summary["busy_s"] == 10.0
    assert summary["kinds"] == pytest.approx(
        {"attention": 0.6, "matrix products": 0.3, "other": 0.1}
    )
    assert summary["kernels"][0] == {
        "name": "paged_decode_attention",
        "seconds": 6.0,
        "launches": 2,
    }


def test_a_profile_without_kernels_says_nothing():
    assert summarize([]) is None
