"""Data-parallel replicas behind `jaxinfer serve`, on two emulated devices."""

import concurrent.futures

import pytest

from tests.cli.service.running_service import PROMPT, RunningService

pytestmark = pytest.mark.slow

SEATS = 2  # sequences that run at once on a replica
FLAGS = ["--data-parallel-size", "2", "--max-num-seqs", str(SEATS), "--api-server-count", "2"]
FLAGS += ["--max-num-batched-tokens", "32", "--num-kv-blocks", "110"]
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def service():
    running = RunningService(*FLAGS, environment=TWO_DEVICES)
    yield running
    running.close()


def ask(service, prompt, max_tokens):
    answer = service.client.completions.create(
        model="jaxinfer", prompt=prompt, max_tokens=max_tokens, temperature=0
    )
    return answer.choices[0].text


def test_more_requests_run_than_one_replica_holds(service):
    most = 0
    with concurrent.futures.ThreadPoolExecutor(4 * SEATS) as pool:
        asked = [pool.submit(ask, service, PROMPT, 300) for _ in range(4 * SEATS)]
        while most <= SEATS and not all(each.done() for each in asked):
            most = max(most, service.metric("num_requests_running"))
    assert most > SEATS


def test_answers_are_those_of_requests_alone(service):
    prompts = [f"{PROMPT}, {i} foxes" for i in range(6)]

    with concurrent.futures.ThreadPoolExecutor(12) as pool:  # more at once than have a seat
        answers = list(pool.map(lambda each: ask(service, each, 16), prompts * 2))
    assert answers == [ask(service, each, 16) for each in prompts] * 2
