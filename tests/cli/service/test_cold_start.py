"""The first start of `jaxinfer serve`, with nothing compiled: what it computes until it answers."""

import os
import subprocess
import sys

import psutil
import pytest

from tests.cli.service.running_service import PROMPT, RunningService

pytestmark = [pytest.mark.slow, pytest.mark.optimized]

MOST = 7.0
"""CPU seconds of a start in those of `YARDSTICK`; half of it is used, some 10 s on two cores."""

YARDSTICK = """
import os
import jax, jax.numpy as jnp, transformers

def sorts(count):
    def program(x):
        for index in range(count):
            x = jnp.sort(x) * index + jnp.cumsum(x)
        return x

    return program

for count in range(1, 9):
    jax.jit(sorts(count))(jnp.arange(64.0)).block_until_ready()
print(sum(os.times()[:2]))
"""
"""What others' code takes for imports and eight programs, at the machine's speed of the moment."""


def _yardstick_s(environment):
    command = [sys.executable, "-c", YARDSTICK]
    return float(subprocess.check_output(command, env={**os.environ, **environment}))


def test_a_cold_start_computes_a_few_times_what_imports_and_compiling_take(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "XLA_FLAGS": ""}
    before = _yardstick_s(environment)
    service = RunningService(environment=environment)
    try:
        service.client.completions.create(model="jaxinfer", prompt=PROMPT, max_tokens=20)
        processes = [psutil.Process(service.process.pid), *service.children()]
        times = [each.cpu_times() for each in processes]
    finally:
        service.close()
    # Others compute beside it: the machine may have become slower or faster since.
    yardstick = max(before, _yardstick_s(environment))
    assert sum(each.user + each.system for each in times) < MOST * yardstick
