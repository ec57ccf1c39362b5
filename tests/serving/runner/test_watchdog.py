"""A device that does not answer is named, and the process that waits for it ends."""

import subprocess
import sys
import time

from jaxinfer.serving.runner.watchdog import Watchdog

_HUNG = """
import time
import numpy as np
from tests.serving.small_llm import small_llm
with small_llm(device_timeout=0.5) as llm:
    runner = llm._loaded.replicas[0].runner
    launch = runner.launch
    class Never:
        ndim = 2
        def __array__(self, *_, **__):
            time.sleep(60)
    runner.launch = lambda schedule: launch(schedule)._replace(sampled=Never())
    llm.generate([[1, 2, 3]], use_tqdm=False)
"""


def test_a_process_whose_device_does_not_answer_ends_and_names_it():
    done = subprocess.run(
        [sys.executable, "-c", _HUNG], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "(cpu) did not answer within 0.5 s (a step)" in last
    assert "device_timeout" in last


def test_a_wait_within_the_limit_and_the_time_between_waits_are_no_timeout():
    said = []
    watchdog = Watchdog(0.3, "a device", said.append)
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
    watchdog.close()


def test_without_a_limit_nothing_is_watched():
    watchdog = Watchdog(0, "a device", lambda said: None)
    with watchdog.watching("a step"):
        assert watchdog._thread is None
