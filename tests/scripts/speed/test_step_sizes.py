"""Programs are timed on padding while the device is busy; a size's cost follows from the times."""

import contextlib
import itertools

import pytest

from jaxinfer.serving.programs.kinds.prompt_logprobs import PromptLogprobsKey
from jaxinfer.serving.programs.program_set import all_programs
from scripts.speed import step_sizes as sizes
from scripts.speed.step_sizes import ProgramTimer, step_size_lines, step_sizes
from tests.serving.runner.tiny_runner import Loop, expected_greedy, make_runner


class _Clock:
    """The host's time, which launches and the device's work move on."""

    def __init__(self):
        self.host = self.device = 0.0

    def launcher(self, *, launch_s: float, device_s: float):
        def launch():
            self.host += launch_s
            self.device = max(self.device, self.host) + device_s
            return _Result(self, self.device)

        return launch


class _Result:
    def __init__(self, clock, end):
        self._clock, self._end = clock, end

    def is_ready(self):
        return self._clock.host >= self._end

    def block_until_ready(self):
        self._clock.host = max(self._clock.host, self._end)


@pytest.fixture
def clock(monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(sizes.time, "perf_counter", lambda: clock.host)
    return clock


def _timer(clock, monkeypatch, *, busy_s: float, launch_s: float = 0.003):
    timer = ProgramTimer.__new__(ProgramTimer)
    timer._busy = clock.launcher(launch_s=launch_s, device_s=busy_s)
    short = clock.launcher(launch_s=launch_s, device_s=0.001)
    monkeypatch.setattr(timer, "_launch", lambda key: short)
    return timer


@pytest.mark.parametrize("busy_s", [0.1, 0.01])
def test_a_program_shorter_than_its_launch_is_timed_on_the_device(clock, monkeypatch, busy_s):
    timer = _timer(clock, monkeypatch, busy_s=busy_s)
    assert timer.seconds(PromptLogprobsKey(8)) == pytest.approx(0.001)


def test_a_host_that_never_gets_ahead_is_an_error(clock, monkeypatch):
    timer = _timer(clock, monkeypatch, busy_s=0.001)
    with pytest.raises(RuntimeError, match="the host is too slow"):
        timer.seconds(PromptLogprobsKey(8))


@pytest.fixture
def runner(tmp_path):
    runner = make_runner(compilation_cache_dir=str(tmp_path))
    with contextlib.closing(runner):
        yield runner


def test_every_program_of_a_step_is_timed_and_the_engine_goes_on(runner):
    timer = ProgramTimer(runner)
    assert {type(key).__name__ for key in timer.keys} == {
        *("PrefillShape", "DecodeShape", "SampledDecodeKey", "SamplerKey", "PromptLogprobsKey")
    }
    assert set(timer.keys) < set(all_programs(runner._plan.buckets, swaps=False))
    firsts = {type(key): key for key in timer.keys}.values()
    assert min(timer.seconds(key) for key in firsts) > 0
    loop = Loop(runner)
    loop.add([5, 6, 7])
    assert loop.run() == [expected_greedy([5, 6, 7], 6)]


@pytest.mark.parametrize(("enough_s", "place"), [(0.0, 0), (1e9, -1)])
@pytest.mark.slow
def test_the_device_is_kept_busy_by_the_first_prefill_that_takes_long(
    runner, monkeypatch, enough_s, place
):
    monkeypatch.setattr(sizes, "_BUSY_S", enough_s)
    timer, made = ProgramTimer(runner), {}
    make = timer._launch
    monkeypatch.setattr(timer, "_launch", lambda key: made.setdefault(key, make(key)))
    chosen = timer._long_launch()
    unscored = [key for key in runner._plan.buckets.prefill_shapes() if not key.all_tokens]
    assert chosen is made[unscored[place]]


def test_what_a_size_costs_follows_from_the_programs_times(monkeypatch, tmp_path):
    runner = make_runner(max_num_seqs=40, compilation_cache_dir=str(tmp_path))
    count = itertools.count(1)
    monkeypatch.setattr(ProgramTimer, "seconds", lambda self, key: next(count) * 1e-6)
    with contextlib.closing(runner):
        report = step_sizes(runner, ["fewer"])
    assert report["num_programs"] == len(all_programs(runner._plan.buckets, swaps=False))
    assert {"rows 16", "sampled_rows 24"} <= {each["sizes"] for each in report["without"]}
    assert all(each["saved"] and each["steps"] for each in report["without"][:-1])
    assert report["without"][-1] == {"sizes": "ladder fewer", "saved": 0, "steps": []}
    us = report["programs"]
    for each in report["without"]:
        percents = [step["percent"] for step in each["steps"]]
        assert percents == sorted(percents, reverse=True)
        for step in each["steps"]:
            before, after = (_total(us, step[side]) for side in ("before", "after"))
            assert (step["before_us"], step["after_us"]) == (before, after)
            assert step["percent"] == pytest.approx(100 * (after - before) / before)
    lines = step_size_lines(report)
    assert f"{report['num_programs']} programs; without" in lines
    assert f"{report['without'][0]['sizes']}: {report['without'][0]['saved']} fewer" in lines


def _total(us, step):
    return sum(us[name] for name in step.split(", "))
