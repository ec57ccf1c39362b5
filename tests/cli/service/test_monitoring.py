"""`jaxinfer serve` with two front ends: whichever is scraped counts what all clients saw."""

import json
import re

import httpx
import pytest

from tests.cli.service.running_service import PROMPT, RunningService
from tests.server.telemetry.scrape import samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service():
    running = RunningService("--api-server-count", "2", "--access-log")
    yield running
    running.close()


def ask(service, body, **options):
    return httpx.post(f"{service.url}/v1/completions", json=body, timeout=120, **options)


def test_any_front_end_shows_the_sums_of_all(service):
    usages, sums = [], set()
    for i in range(24):  # connections of their own, so that both front ends get some
        body = {"model": "jaxinfer", "prompt": f"{PROMPT} {i}", "max_tokens": 5 + i % 3}
        answer = ask(service, body | {"ignore_eos": True})
        usages.append(answer.json()["usage"])
    for _ in range(8):
        shown = samples(httpx.get(f"{service.url}/metrics").content)
        sums.add(shown["prompt_tokens_total",])
    assert sums == {sum(usage["prompt_tokens"] for usage in usages)}
    assert shown["generation_tokens_total",] == sum(u["completion_tokens"] for u in usages)
    assert shown["request_success_total", "length"] == 24
    for name in ("queue", "prefill", "decode", "inference"):
        assert shown[f"request_{name}_time_seconds_count",] == 24
    assert shown["iteration_tokens_total_sum",] >= shown["generation_tokens_total",] - 24


def test_the_access_log_has_a_line_for_each_request(service):
    headers = {"X-Request-Id": "find-me"}
    body = {"model": "jaxinfer", "prompt": "a secret", "max_tokens": 1}
    answer = ask(service, body, headers=headers)
    assert answer.headers["x-request-id"] == "find-me"
    found = service.wait_for_line(r"^{.*find-me.*}$", 60)
    line = json.loads(found[0])
    assert (line["status"], line["path"]) == (200, "/v1/completions")
    assert not any(re.search("a secret", each) for each in service.lines)
