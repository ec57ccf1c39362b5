"""Host-dependent rows go with the others."""

from tests.serving.constraints.fake_constraint import ReadsTokens
from tests.serving.scheduler.scheduling import (
    add,
    assert_solo,
    make_request,
    make_scheduler,
    step,
)


def make_dependent(request_id, length, max_tokens=20):
    request = make_request(request_id, length, max_tokens)
    request.constraint = ReadsTokens()
    return request


def test_host_dependent_rows_go_with_the_others():
    scheduler, device = make_scheduler()
    plain = make_request("a", 5, 12)
    requests = add(scheduler, plain, make_dependent("b", 5, 12), make_dependent("c", 6))
    assert {len(step(scheduler, device).rows) for _ in range(5)} == {3}
    while scheduler.has_unfinished:
        step(scheduler, device)
    assert_solo(*requests)
