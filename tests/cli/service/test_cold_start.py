"""The first start of `jaxinfer serve`, with nothing compiled: what it computes until it answers."""

import psutil
import pytest

from tests.cli.service.running_service import PROMPT, RunningService

pytestmark = [pytest.mark.slow, pytest.mark.optimized]

MOST_CPU_S = 20.0
"""What two cores compute in the 10 seconds that a user waits at most; half of it is used."""


def test_a_cold_start_answers_within_what_two_cores_compute_in_ten_seconds(tmp_path):
    service = RunningService(environment={"XDG_CACHE_HOME": str(tmp_path), "XLA_FLAGS": ""})
    try:
        service.client.completions.create(model="jaxinfer", prompt=PROMPT, max_tokens=20)
        processes = [psutil.Process(service.process.pid), *service.children()]
        times = [each.cpu_times() for each in processes]
    finally:
        service.close()
    assert sum(each.user + each.system for each in times) < MOST_CPU_S
