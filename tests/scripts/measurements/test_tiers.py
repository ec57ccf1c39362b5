"""The benchmark of prefix tiers asks conversations again that were evicted."""

import pytest

from scripts import tiers_benchmark
from scripts.measurements.tiers import tier_lines, tier_report


@pytest.mark.slow
def test_evicted_conversations_are_found_and_new_ones_are_not():
    arguments = {"model": "bundled", "show_progress": False, "kv_offloading_size": 0.5}
    report = tier_report(
        None, engine_arguments=arguments, conversations=3, tokens=96, rows=0, repeats=1
    )
    for way in ("one_by_one", "at_once"):
        assert report["recomputed"][way]["cached_share"] == 0
        assert report["fetched"][way]["cached_share"] > 0.5
        assert len(report["fetched"][way]["seconds"]) == 3
        assert any(line.startswith(f"{way}: ") for line in tier_lines(report))
    assert report["metrics"]["jaxinfer:external_prefix_cache_hits"] > 0


def test_the_bundled_model_is_the_default():
    arguments = tiers_benchmark.build_parser().parse_args([])
    assert (arguments.model_shape, arguments.conversations, arguments.tokens) == (
        "bundled",
        64,
        2048,
    )
