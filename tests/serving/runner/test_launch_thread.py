import contextlib
import threading

import pytest

from jaxinfer.serving.runner.launch_thread import LaunchThread
from tests.serving.runner.tiny_runner import Loop, make_runner

TIMEOUT_S = 20


@pytest.fixture
def launches():
    launches = LaunchThread(contextlib.nullcontext)
    yield launches
    launches.close()


def test_launches_run_in_their_order_in_either_thread(launches):
    done = []
    runs = [launches.submit, launches.submit, launches.run]
    futures = [runs[i % 3](done.append, i) for i in range(100)]
    launches.wait()
    assert done == [*range(100)]
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("name", ["submit", "run"])
def test_what_a_launch_raises_is_its_own(launches, name):
    futures = [getattr(launches, name)(lambda x: 1 // x, i) for i in (1, 0, 2)]
    launches.wait()
    assert futures[0].result() == 1
    with pytest.raises(ZeroDivisionError):
        futures[1].result()
    assert futures[2].result() == 0


def test_the_thread_is_within_a_context():
    entered = []

    @contextlib.contextmanager
    def within():
        entered.append(threading.current_thread().name)
        yield

    launches = LaunchThread(within)
    names = [launches.submit(lambda: threading.current_thread().name).result() for _ in range(2)]
    launches.close()
    assert entered == names[:1]
    assert names[0] == names[1]


def test_closing_ends_the_thread_after_what_was_submitted():
    before = threading.active_count()
    launches = LaunchThread(contextlib.nullcontext)
    release = threading.Event()
    future = launches.submit(release.wait, TIMEOUT_S)
    assert threading.active_count() == before + 1
    release.set()
    launches.close()
    launches.close()
    assert future.result()
    assert threading.active_count() == before


def test_a_step_is_planned_while_the_one_before_is_launched():
    runner = make_runner()
    loop = Loop(runner)
    loop.add([1, 2, 3])
    loop.step()
    may_launch, launch = threading.Event(), runner.launcher.launch

    def slow_launch(*arguments):
        assert may_launch.wait(TIMEOUT_S)
        return launch(*arguments)

    runner.launcher.launch = slow_launch
    schedules = [loop.scheduler.schedule() for _ in range(2)]
    steps = [runner.launch(schedule) for schedule in schedules]  # returns, though none can begin
    assert not any(step.result.done() for step in steps)
    may_launch.set()
    loop.in_flight.extend(zip(schedules, steps, strict=True))
    (tokens,) = loop.run()
    runner.close()
    assert tokens == _alone()


def test_weights_change_between_two_launches():
    """A launch that was submitted before an update reads the weights from before it."""
    runner = make_runner()
    launched, launch = [], runner.launcher.launch
    entered, may_launch = threading.Event(), threading.Event()

    def slow_launch(*arguments):
        entered.set()
        assert may_launch.wait(TIMEOUT_S)
        launched.append(runner.resident.params)
        return launch(*arguments)

    runner.launcher.launch = slow_launch
    loop = Loop(runner)
    loop.add([1, 2, 3])
    step = runner.launch(loop.scheduler.schedule())
    assert entered.wait(TIMEOUT_S)
    before = runner.resident.params
    threading.Timer(0.05, may_launch.set).start()
    runner.update_params(dict(before))
    assert step.result.done()
    assert launched == [before]
    assert launched[0] is before
    runner.close()


def _alone() -> list[int]:
    loop = Loop(make_runner())
    loop.add([1, 2, 3])
    return loop.run()[0]
