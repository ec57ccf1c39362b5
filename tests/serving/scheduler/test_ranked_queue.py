"""A queue in order of rank finds its first item whatever is added and removed."""

from hypothesis import given
from hypothesis import strategies as st

from jaxinfer.serving.requests.request import Rank
from jaxinfer.serving.scheduler.ranked_queue import RankedQueue


@given(st.lists(st.one_of(st.integers(-2, 2), st.none(), st.just("first")), max_size=300))
def test_items_stand_by_rank_whatever_comes_and_goes(operations):
    queue: RankedQueue[int] = RankedQueue()
    ranks: dict[str, Rank] = {}
    for i, operation in enumerate(operations):
        if isinstance(operation, int):
            ranks[str(i)] = Rank(operation, i)
            queue.add(str(i), ranks[str(i)], i)
        elif ranks:
            key = str(queue.first()) if operation == "first" else next(iter(ranks))
            assert queue.remove(key) == int(key)
            rank = ranks.pop(key)
            if i % 3 == 1:
                rank = Rank(2, i)
            if i % 3 != 2:  # it comes back, a preempted request with the rank it had
                queue.add(key, rank, int(key))
                ranks[key] = rank
        assert len(queue) == len(ranks)
        assert [str(item) for item in queue.by_rank()] == sorted(ranks, key=lambda key: ranks[key])
        if ranks:
            assert str(queue.first()) == min(ranks, key=lambda key: ranks[key])


def test_removed_items_take_no_memory_for_ever():
    queue: RankedQueue[int] = RankedQueue()
    queue.add("urgent", Rank(-1, 0), 0)
    for i in range(1000):
        queue.add(str(i), Rank(0, i), i)
        queue.remove(str(i))
    assert queue.first() == 0
    assert len(queue._heap) < 100
