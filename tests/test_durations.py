"""What takes long is marked `slow`, what does not is not, by the durations last recorded."""

from collections import defaultdict

from tests import durations

# Three times "a few seconds", and an eighth of it: machines differ, and are busy at times.
MOST_UNMARKED_S, LEAST_MARKED_S = 12.0, 0.5


def _unmarked_and_marked(items, recorded):
    """Unmarked tests that took long, and marks under which nothing recorded took half a second."""
    unmarked, longest = [], defaultdict(list)
    for item in items:
        seconds = recorded.get(item.nodeid)
        places = [place for place, _ in item.iter_markers_with_node("slow")]
        if seconds is None:  # quick, or new
            continue
        if not places and seconds > MOST_UNMARKED_S:
            unmarked.append(item.nodeid)
        for place in places:
            longest[place.nodeid.split("[")[0]].append(seconds)
    return unmarked, [name for name, took in longest.items() if max(took) < LEAST_MARKED_S]


def test_what_took_long_is_marked_slow_and_what_was_quick_is_not(request):
    unmarked, marked = _unmarked_and_marked(request.session.items, durations.recorded())
    assert not unmarked, "mark them slow, or make them quick and run --record-durations"
    assert not marked, "take the mark slow away, or run --record-durations if they are slow"


def test_the_record_is_of_files_that_exist():
    root = durations.RECORD.parents[1]
    assert [name for name in durations.of_files() if not (root / name).exists()] == []


class _Item:
    def __init__(self, nodeid, *places):
        self.nodeid, self._places = nodeid, places

    def iter_markers_with_node(self, name):
        return [(place, name) for place in self._places]


def test_marks_are_compared_with_the_record():
    module = _Item("a.py")
    items = [_Item("a.py::long"), _Item("b.py::short"), _Item("a.py::in[1]", module)]
    items += [_Item("a.py::in[2]", module), _Item("b.py::q[1]", _Item("b.py::q[1]"))]
    recorded = {"a.py::long": 13.0, "b.py::short": 3.0, "a.py::in[1]": 0.1, "a.py::in[2]": 7.0}
    assert _unmarked_and_marked(items, recorded) == (["a.py::long"], [])
    recorded |= {"a.py::in[2]": 0.2, "b.py::q[1]": 0.3}
    assert _unmarked_and_marked(items, recorded) == (["a.py::long"], ["a.py", "b.py::q"])
