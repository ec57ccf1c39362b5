"""The mark `slow` tells which tests take long, by the durations of the last recorded run."""

from tests import durations

# A recorded run may have been on a busy machine: only what is far off counts.
_SURELY_SLOW_S, _SURELY_FAST_S = 20.0, 0.5


def test_slow_tests_bear_the_mark_and_fast_ones_do_not(request):
    taken = durations.of_tests()
    marked: dict[str, bool] = {}
    for item in request.session.items:
        if not any(item.get_closest_marker(name) for name in ("gpu", "h200_compile", "exhaustive")):
            test = durations.without_case(item.nodeid)
            marked[test] = marked.get(test, False) or item.get_closest_marker("slow") is not None
    unmarked = [t for t, slow in marked.items() if not slow and taken.get(t, 0) > _SURELY_SLOW_S]
    assert not unmarked, f"mark as slow (or make faster): {unmarked}"
    too_fast = [t for t, slow in marked.items() if slow and taken.get(t, 0) < _SURELY_FAST_S]
    assert not too_fast, f"not slow: {too_fast}"
