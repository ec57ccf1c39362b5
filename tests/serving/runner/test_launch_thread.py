"""Launches run beside the host's work, in a thread of their own."""

import threading

from tests.serving.runner.tiny_runner import Loop, make_runner

TIMEOUT_S = 20


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
