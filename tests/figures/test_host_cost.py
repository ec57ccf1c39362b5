"""Scheduling and batch building are cheap, and no dearer beside long queues."""

from scripts.figures.host_cost import Queue, measure_host_cost


def _cheapest(queue: Queue) -> float:
    """Best of a few medians: other processes on the machine can only add."""
    return min(measure_host_cost(queue, 100, context=64)["schedule_and_batch_us"] for _ in range(3))


def test_a_step_does_not_get_dearer_with_waiting_or_finished_requests():
    alone = _cheapest(Queue(0, 0))
    assert _cheapest(Queue(waiting=2000, finished=0)) < 1.5 * alone
    assert _cheapest(Queue(waiting=0, finished=2000)) < 1.5 * alone
