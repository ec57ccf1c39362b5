"""Under the fair policy priorities order requests, and none is overtaken without end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxinfer.sampling_params import SamplingParams
from jaxinfer.serving.scheduler.block_pool import BlockPool
from jaxinfer.serving.scheduler.ranked_queue import TURNS_A_LEVEL
from jaxinfer.serving.scheduler.scheduler import Scheduler
from tests.serving.requests.host_request import host_request

MOST_OVERTAKING = 16 * TURNS_A_LEVEL


def order_of_service(priorities, *, at_a_time=1):
    """Indices of one-token requests in the order in which they run, one a step."""
    scheduler = Scheduler(
        BlockPool(64, 8),
        max_num_seqs=1,
        max_num_batched_tokens=8,
        max_model_len=16,
        is_fair=True,
    )
    params = SamplingParams(max_tokens=1, temperature=0)
    waiting = [
        host_request(str(i), [1, 2], params, priority=priority)
        for i, priority in enumerate(priorities)
    ][::-1]
    served = []
    while waiting or scheduler.has_unfinished:
        for _ in range(min(at_a_time, len(waiting))):
            scheduler.add(waiting.pop())
        schedule = scheduler.schedule()
        assert schedule is not None
        served += [int(row.request.request_id) for row in schedule.rows]
        scheduler.update(schedule, [[3]])
    scheduler.check_invariants()
    return served


@settings(deadline=None)
@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=40), st.integers(1, 40))
def test_each_is_served_once_and_by_priority_among_those_that_came_together(priorities, at_a_time):
    served = order_of_service(priorities, at_a_time=at_a_time)
    assert sorted(served) == list(range(len(priorities)))
    if at_a_time >= len(priorities):
        levels = [max(-8, min(8, priorities[i])) for i in served]
        assert levels == sorted(levels)


@settings(max_examples=6, deadline=None)
@given(st.integers(-100, 100), st.lists(st.integers(-100, 100), max_size=30))
def test_no_stream_of_more_urgent_requests_starves_one(priority, pattern):
    """Two come for each that is served, nearly all of them more urgent."""
    others = (pattern or [-100]) * (2 * MOST_OVERTAKING // max(len(pattern), 1) + 1)
    served = order_of_service([priority, *others], at_a_time=2)
    assert served.index(0) <= MOST_OVERTAKING


def test_equal_priorities_are_served_first_come_first():
    assert order_of_service([5] * 20, at_a_time=3) == list(range(20))
