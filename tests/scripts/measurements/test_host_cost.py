"""What the host does in a decode step does not depend on who waits and who has finished."""

import pytest

from scripts.measurements.host_cost import DecodeBench, Queue
from tests.call_count import calls_of


def _calls_of_a_step(queue: Queue) -> int:
    bench = DecodeBench(queue, steps=20, context=64)
    bench.prefill()
    bench.decode_step()
    return calls_of(bench.decode_step)


@pytest.mark.parametrize("queue", [Queue(waiting=500, finished=0), Queue(waiting=0, finished=500)])
def test_a_step_does_the_same_beside_a_long_queue(queue):
    # A look at whether there is a queue is all that waiting requests may cost.
    assert _calls_of_a_step(queue) <= _calls_of_a_step(Queue(0, 0)) + 4
