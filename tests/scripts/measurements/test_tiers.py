"""The benchmark of prefix tiers asks conversations again that were evicted."""

import pytest

from scripts import tiers_benchmark
from scripts.measurements import tiers
from scripts.measurements.tiers import Beginnings, tier_lines, tier_report


@pytest.mark.slow
def test_evicted_conversations_are_found_and_new_ones_are_not():
    arguments = {"model": "bundled", "show_progress": False, "kv_offloading_size": 0.5}
    report = tier_report(None, engine_arguments=arguments, conversations=3, tokens=96)
    for way in ("one_by_one", "at_once"):
        assert report["recomputed"][way]["cached_share"] == 0
        assert report["fetched"][way]["cached_share"] > 0.5
        assert len(report["fetched"][way]["seconds"]) == 3
        assert any(line.startswith(f"{way}: ") for line in tier_lines(report))
    begun = report["fetched"]["beginnings"]
    assert begun["calls"] > 6  # a fetch for each conversation, and copies
    assert begun["longest_ms"] > 0
    assert report["recomputed"]["beginnings"] == {"calls": 0, "longest_ms": 0}
    shown = f"beginning copies, {begun['calls']} times: at most {begun['longest_ms']:.3f} ms of"
    assert any(line.startswith(shown) for line in tier_lines(report))
    assert report["metrics"]["jaxinfer:external_prefix_cache_hits"] > 0


class FakeCopies:
    def __init__(self, clock):
        self.clock = clock

    def fetch(self, seconds):
        self.clock[0] += seconds
        if seconds > 1:
            raise RuntimeError
        return seconds


def test_the_longest_beginning_of_copies_is_kept(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(tiers.time, "perf_counter", lambda: clock[0])
    copies = FakeCopies(clock)
    copies.fetch(0.75)  # before it is timed
    with Beginnings([(FakeCopies, "fetch")]) as begun:
        assert begun.record() == {"calls": 0, "longest_ms": 0}
        assert [copies.fetch(seconds) for seconds in (0.125, 0.25, 0.0625)] == [0.125, 0.25, 0.0625]
        assert begun.record() == {"calls": 3, "longest_ms": 250}
        with pytest.raises(RuntimeError):
            copies.fetch(2)
        assert FakeCopies(clock).fetch(0.5) == 0.5
    copies.fetch(1)  # no longer timed
    assert begun.record() == {"calls": 5, "longest_ms": 2000}


def test_the_bundled_model_is_the_default():
    arguments = tiers_benchmark.build_parser().parse_args([])
    assert (arguments.model_shape, arguments.conversations, arguments.tokens) == (
        "bundled",
        64,
        2048,
    )
    assert not arguments.workload
