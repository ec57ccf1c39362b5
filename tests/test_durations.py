"""Tests are slow by their marks, which are where the record confirms them, or by the record."""

from collections import defaultdict

import pytest

from tests import durations

# A fifth of what makes an unmarked test slow: machines differ, and are busy at times.
LEAST_MARKED_S = 0.5


def _stale_marks(items, recorded):
    """Marks under which nothing recorded took half a second.

    Not marks as slow where they run alone: a recorded run may have compiled their programs before;
    nor of every case of a matrix, some of whose tests may be quick.
    """
    longest = defaultdict(list)
    for item in items:
        seconds = recorded.get(item.nodeid)
        if seconds is not None:  # else it is quick, or new
            for place, mark in item.iter_markers_with_node("slow"):
                if mark.args not in (("alone",), ("each",)):
                    longest[place.nodeid.split("[")[0]].append(seconds)
    return [name for name, took in longest.items() if max(took) < LEAST_MARKED_S]


def test_what_was_quick_is_not_marked_slow(request):
    items = request.config.stash[durations.ALL_ITEMS]
    assert not _stale_marks(items, durations.recorded()), (
        "take the mark slow away, or run --record-durations if they are slow"
    )


def test_a_run_without_marks_leaves_out_what_is_slow(request):
    items = request.session.items
    if not request.config.option.markexpr and "::" not in "".join(request.config.args):
        assert not any(item.get_closest_marker("slow") for item in items)
    assert durations.is_long("tests/test_soak.py::test_a_soak") is False  # not recorded: new
    longest = next(iter(durations.recorded()))
    assert durations.is_long(longest)


def test_the_record_is_of_files_that_exist():
    root = durations.RECORD.parents[1]
    assert [name for name in durations.of_files() if not (root / name).exists()] == []


def test_of_costly_cases_the_quickest_is_not_left_to_releases(monkeypatch):
    seconds = {"a.py::f[1]": 9.0, "a.py::f[2]": 5.0, "a.py::f[3]": 0.9, "a.py::g": 11.0}
    seconds["a.py::h"] = 13.0  # among the longest
    monkeypatch.setattr(durations, "recorded", lambda: seconds)
    assert durations.left_to_releases.__wrapped__() == {"a.py::f[1]", "a.py::h"}


class _Item:
    def __init__(self, nodeid, *places):
        self.nodeid, self._places = nodeid, places

    def iter_markers_with_node(self, name):
        return [(place, getattr(pytest.mark, name).mark) for place in self._places]


def test_marks_are_compared_with_the_record():
    module = _Item("a.py")
    items = [_Item("a.py::in[1]", module), _Item("a.py::in[2]", module)]
    items += [_Item("b.py::q[1]", _Item("b.py::q[1]")), _Item("b.py::new", _Item("b.py::new"))]
    recorded = {"a.py::in[1]": 0.1, "a.py::in[2]": 7.0, "b.py::q[1]": 3.0}
    assert _stale_marks(items, recorded) == []
    recorded |= {"a.py::in[2]": 0.2, "b.py::q[1]": 0.3}
    assert _stale_marks(items, recorded) == ["a.py", "b.py::q"]


def test_what_is_slow_alone_may_be_quick_in_a_record():
    item = _Item("a.py::x", _Item("a.py::x"))
    assert _stale_marks([item], {"a.py::x": 0.1}) == ["a.py::x"]
    item.iter_markers_with_node = lambda _: [(item, pytest.mark.slow("alone").mark)]
    assert _stale_marks([item], {"a.py::x": 0.1}) == []
