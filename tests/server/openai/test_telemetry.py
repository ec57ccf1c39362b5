"""A server's metrics are the sums of what its clients were told; the load generator agrees."""

import asyncio
import io
import json

import pytest

from jaxinfer.cli.client.load import Load
from jaxinfer.cli.client.load_report import measure_server
from jaxinfer.cli.client.server import parse_target, served_model
from jaxinfer.server.telemetry.access_log import AccessLog
from jaxinfer.server.telemetry.telemetry import Telemetry
from tests.server.openai.http_server import serving
from tests.server.telemetry.scrape import samples

GREEDY = {"model": "tiny", "temperature": 0}


@pytest.fixture
def watched(make_client):
    """A client of an app with telemetry of its own."""
    return make_client(telemetry=Telemetry("tiny"))


def shown(client):
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(answer.content)


def test_metrics_equal_the_usage_of_all_answers(watched):
    bodies = [
        {"prompt": "Once upon a time", "max_tokens": 7, "n": 2},
        {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 5, "ignore_eos": True},
        {"prompt": "A story: " * 10, "max_tokens": 30, "stop": ["a"]},
        {"prompt": "The end", "max_tokens": 0, "echo": True, "logprobs": 1},
    ]
    usages, ends = [], []
    for body in bodies:
        answer = watched.post("/v1/completions", GREEDY | body).json()
        usages.append(answer["usage"])
        ends += [choice["finish_reason"] for choice in answer["choices"]]
    streamed = {"prompt": "Once", "max_tokens": 9, "stream": True}
    options = {"stream_options": {"include_usage": True}}
    text = watched.post("/v1/completions", GREEDY | streamed | options).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    usages.append(events[-1]["usage"])
    ends += [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    after = shown(watched)
    assert after["prompt_tokens_total",] == sum(usage["prompt_tokens"] for usage in usages)
    assert after["generation_tokens_total",] == sum(usage["completion_tokens"] for usage in usages)
    details = [usage.get("prompt_tokens_details") or {} for usage in usages]
    cached = sum(each.get("cached_tokens") or 0 for each in details)
    assert after["prompt_tokens_cached_total",] == cached
    for reason in ("stop", "length"):
        assert after["request_success_total", reason] == ends.count(reason)
    assert after["request_success_total", "abort"] == 0
    assert after["time_to_first_token_seconds_count",] == 5


def test_a_client_that_goes_away_counts_as_an_abort(watched):
    async def leave():
        """By hand: httpx's transport for apps waits for the whole answer."""
        asked = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
        body = json.dumps(GREEDY | asked)
        gone = asyncio.Event()
        told = [{"type": "http.request", "body": body.encode(), "more_body": False}]

        async def receive():
            if told:
                return told.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if b"text" in message.get("body", b""):
                gone.set()

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
            "scheme": "http",
            "http_version": "1.1",
        }
        out = io.StringIO()
        await asyncio.wait_for(AccessLog(watched.app, out)(scope, receive, send), 30)
        return json.loads(out.getvalue())

    line = asyncio.run(leave())
    assert line["status"] == 499
    assert shown(watched)["request_success_total", "abort"] == 1


def test_a_load_on_a_real_server_counts_what_the_server_counts(watched):
    lengths = {"input_len": 16, "output_len": 8, "vocab_size": 90}
    load = Load(model="tiny", num_prompts=12, max_concurrency=5, **lengths)
    with serving(watched.app) as port:
        target = parse_target(f"http://127.0.0.1:{port}/v1")
        assert served_model(target) == "tiny"
        report = measure_server(target, load, slos={"ttft": 60_000})
    assert (report["num_completed"], report["errors"]) == (12, {})
    assert report["usage_differs"] == report["usage_missing"] == 0
    assert report["goodput"]["share"] == 1
    assert report["peak_concurrency"] <= 5
    after = shown(watched)
    # One more came first, to see that the server answers.
    assert after["prompt_tokens_total",] == report["prompt_tokens"] + 16 == 13 * 16
    assert after["generation_tokens_total",] == report["output_tokens"] + 8 == 13 * 8
    assert after["request_success_total", "length"] == 13
