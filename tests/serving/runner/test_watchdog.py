"""A device that does not answer is named, with its program, and the process ends."""

import gc
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest

from jaxinfer.serving.runner.watchdog import Watchdog

_NEVER = """
import time
import numpy as np
from tests.serving.small_llm import small_llm

class Never:
    ndim = 2
    def is_ready(self):
        return False
    def __array__(self, *_, **__):
        time.sleep(60)
"""

_HUNG_STEP = """
with small_llm(device_timeout=0.5) as llm:
    runner = llm._loaded.replicas[0].runner
    launch = runner.launcher.launch
    def hang(schedule, batch):
        launch(schedule, batch)
        never = Never()
        runner._watchdog.expect(never, "the sampler of this test")
        return InFlightStep(never, {}, schedule.rows)
    runner.launcher.launch = hang
    llm.generate([[1, 2, 3]], use_tqdm=False)
"""

_HUNG_START = """
import jax
from jaxinfer.serving.programs.kinds.sampler import SamplerKind
from jaxinfer.serving.programs.kinds.registry import kind_of
from jaxinfer.serving.runner import ahead_of_time
ahead_of_time.is_one_accelerator = lambda plan: True
def hang(self, programs, key, call, resident):
    if key.rows > 1:
        time.sleep(60)
    return resident
SamplerKind.warm_up = hang
small_llm(compile_ahead=True, device_timeout=1.5)
"""


def _ends(code: str) -> str:
    """The last line of a process that its watchdog ends."""
    done = subprocess.run(
        [sys.executable, "-c", _NEVER + code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_process_whose_device_does_not_answer_ends_and_names_the_program():
    last = _ends("from jaxinfer.serving.runner.in_flight import InFlightStep\n" + _HUNG_STEP)
    assert "(cpu) did not answer within 0.5 s (the sampler of this test)" in last
    assert "device_timeout" in last


@pytest.mark.slow
def test_a_program_that_does_not_end_at_start_ends_the_process_by_name():
    last = _ends(_HUNG_START)
    assert "(cpu) did not answer within 1.5 s (SamplerKey(rows=" in last
    assert "device_timeout" in last


class _Result:
    """Of a program that ends when it is told to."""

    def __init__(self) -> None:
        self.ready = False

    def is_ready(self) -> bool:
        return self.ready


@pytest.fixture
def said():
    return []


@pytest.fixture
def watchdog(said):
    dog = Watchdog(0.3, "a device", said.append)
    yield dog
    dog.close()


def test_a_wait_within_the_limit_and_the_time_between_waits_are_no_timeout(watchdog, said):
    for _ in range(4):
        with watchdog.watching("a step"):
            time.sleep(0.1)
        time.sleep(0.1)
    time.sleep(0.5)
    assert said == []
    with watchdog.watching("a long step"):
        time.sleep(1)
    assert len(said) == 1
    assert "a device did not answer within 0.3 s (a long step)" in said[0]


def test_a_launched_program_counts_whatever_its_host_does(watchdog, said):
    """It may be compiling the next one, which waits for the device without end."""
    result = _Result()
    watchdog.expect(result, "a program")
    time.sleep(1)
    assert ["(a program)" in message for message in said] == [True]


def test_each_program_has_the_time_after_those_before_it(watchdog, said):
    results = [_Result() for _ in range(6)]
    for index, result in enumerate(results):
        watchdog.expect(result, f"program {index}")
    for result in results[:5]:
        time.sleep(0.1)
        result.ready = True
    assert said == []
    time.sleep(0.8)
    assert ["(program 5)" in message for message in said] == [True]


def test_results_that_are_dropped_or_deleted_are_not_waited_for(watchdog, said):
    result, deleted = _Result(), jnp.zeros(3)
    watchdog.expect(result, "dropped")
    watchdog.expect(deleted, "deleted")
    deleted.delete()
    del result
    gc.collect()
    time.sleep(0.8)
    assert said == []


def test_results_that_are_there_leave_nothing_behind(watchdog):
    results = [jnp.full(3, value) for value in range(100)]
    for result in results:
        watchdog.expect(result.block_until_ready(), "done")
    assert len(watchdog._watched) == 1


def test_without_a_limit_nothing_is_watched():
    watchdog = Watchdog(0, "a device", lambda said: None)
    watchdog.expect(_Result(), "a program")
    with watchdog.watching("a step"):
        assert watchdog._thread is None
