"""A load on a server that streams without a model: what was asked, what came, what failed."""

import itertools
import json
import statistics

import pytest

from jaxinfer.bench import main
from jaxinfer.cli.client.load import Load, run_load
from jaxinfer.cli.client.load_report import load_report
from jaxinfer.cli.client.server import parse_target
from jaxinfer.cli.client.stream import StreamRecord
from tests.cli.client.sse_server import DONE, SECRET, completions, event, serving, token, usage

SMALL = ["--num-prompts", "6", "--input-len", "5", "--output-len", "4", "--json"]


def report_of(capsys, *flags, status=0):
    assert main([*flags]) == status
    output = capsys.readouterr()
    assert output.err == ""
    return json.loads(output.out)


def test_requests_are_random_ids_streamed_to_their_full_length(capsys):
    with serving() as server:
        report = report_of(capsys, "--serve", server.url, *SMALL)
    sent = [body for body in server.requests if body]
    assert len(sent) == 7, "one request comes first, to see that the server answers"
    assert len({tuple(body["prompt"]) for body in sent}) == 7
    for body in sent:
        assert len(body["prompt"]) == 5
        assert all(0 <= token_id < 256 for token_id in body["prompt"])
        assert body["model"] == "toy"
        assert body["max_tokens"] == 4
        assert body["ignore_eos"] is True
        assert body["stream_options"] == {"include_usage": True}
    assert report["num_completed"] == 6
    assert (report["prompt_tokens"], report["output_tokens"]) == (30, 24)
    assert report["errors"] == {}
    assert report["usage_differs"] == report["usage_missing"] == 0


def test_a_table_shows_what_json_does(capsys):
    with serving(delay_s=0.01) as server:
        assert main(["--serve", server.url, *SMALL[:-1], "--goodput", "ttft:5000", "tpot:0.5"]) == 0
    table = capsys.readouterr().out
    assert "6 of 6 requests completed" in table
    assert "goodput 0.00 requests/s, 0.0% (ttft <= 5000 ms, tpot <= 0.5 ms)" in table
    for name in ("time to first token", "time per output token", "between events", "whole answer"):
        assert name in table


def test_latencies_are_those_of_the_stream(capsys):
    with serving(delay_s=0.05) as server:
        report = report_of(capsys, "--serve", server.url, *SMALL)
    assert report["itl_ms"]["p50"] >= 50
    assert report["tpot_ms"]["mean"] == pytest.approx(report["itl_ms"]["mean"], rel=0.01)
    assert report["ttft_ms"]["p50"] <= report["e2el_ms"]["p50"]
    parts = report["ttft_ms"]["mean"] + 3 * report["tpot_ms"]["mean"]
    assert report["e2el_ms"]["mean"] == pytest.approx(parts, rel=0.01)
    assert report["peak_concurrency"] == 6


def test_concurrency_has_a_limit(capsys):
    with serving(delay_s=0.02) as server:
        report = report_of(capsys, "--serve", server.url, *SMALL, "--max-concurrency", "2")
    assert report["peak_concurrency"] == 2
    assert report["client"]["late_ms"] is None


def test_several_processes_send_one_load(capsys):
    load = Load(model="toy", num_prompts=7, input_len=3, output_len=4, vocab_size=50, seed=3)
    with serving() as server:
        target = parse_target(server.url)
        several = run_load(target, load, 2)
        ids = sorted(body["prompt"] for body in server.requests)
        server.requests.clear()
        run_load(target, load, 1)
    assert ids == sorted(body["prompt"] for body in server.requests)
    report = load_report(load, several, {})
    assert report["num_completed"] == 7
    assert report["client"]["processes"] == 2


def test_arrivals_are_a_poisson_process_and_the_same_for_a_seed():
    fields = {"model": "toy", "num_prompts": 4000, "input_len": 1, "output_len": 1, "vocab_size": 9}
    load = Load(request_rate=50.0, **fields)
    times = load.arrivals()
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.mean(gaps) == pytest.approx(0.02, rel=0.1)
    assert statistics.stdev(gaps) == pytest.approx(0.02, rel=0.1)
    assert times == Load(request_rate=50.0, **fields).arrivals()
    assert set(Load(**fields).arrivals()) == {0.0}


def test_requests_are_sent_when_they_are_due():
    load = Load(
        model="toy", num_prompts=8, input_len=1, output_len=1, vocab_size=9, request_rate=20.0
    )
    with serving() as server:
        result = run_load(parse_target(server.url), load, 1)
    for record, arrival in zip(result.records, load.arrivals(), strict=True):
        assert record.due == pytest.approx(result.start + arrival)
    late = [record.sent - record.due for record in result.records]
    assert min(late) >= 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((500, [b'{"error":{"message":"out of\\nluck"}}']), "HTTP 500: out of luck"),
        ((200, [token("a"), event({"error": {"message": "step failed"}}), DONE]), "step failed"),
        ((200, [token("a")]), "the server closed the connection before the answer's end"),
        ((200, [DONE]), "an answer without a token"),
    ],
)
def test_a_failed_request_is_counted_and_shown(capsys, answer, error):
    def behaviour(method, path, body):
        return answer if len(server.requests) == 4 else completions(method, path, body)

    with serving(behaviour) as server:
        report = report_of(capsys, "--serve", server.url, *SMALL, status=1)
        assert report["errors"] == {error: 1}
        assert report["num_completed"] == 5
        server.requests.clear()
        assert main(["--serve", server.url, *SMALL[:-1]]) == 1
    assert f"1 failed: {error}" in capsys.readouterr().out


def test_usage_that_differs_from_what_was_asked_is_shown(capsys):
    def behaviour(method, path, body):
        if not body:
            return completions(method, path, body)
        return 200, [token("a"), token("b"), usage(5, 2, cached=3), DONE]

    with serving(behaviour) as server:
        assert main(["--serve", server.url, *SMALL[:-1]]) == 0
    table = capsys.readouterr().out
    assert "6 answers whose usage differs from what was asked" in table
    assert "18 of 30 prompt tokens cached" in table


def test_a_server_without_usage_has_its_events_counted(capsys):
    def behaviour(method, path, body):
        status, pieces = completions(method, path, body)
        return status, [piece for piece in pieces if b'"usage"' not in piece]

    with serving(behaviour) as server:
        report = report_of(capsys, "--serve", server.url, *SMALL)
    assert report["usage_missing"] == 6
    assert report["output_tokens"] == 24


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_it_does_not_matter_how_the_server_cuts_its_stream(capsys, size):
    def behaviour(method, path, body):
        status, pieces = completions(method, path, body)
        if body:
            pieces = [b": keep-alive\n\n", *pieces]
        data = b"".join(pieces)
        if body:  # line ends as some servers have them
            data = data.replace(b"\n", b"\r\n")
        return status, [data[i : i + size] for i in range(0, len(data), size)]

    with serving(behaviour) as server:
        report = report_of(capsys, "--serve", server.url, *SMALL[2:], "--num-prompts", "2")
    assert report["num_completed"] == 2
    assert report["output_tokens"] == 8
    assert report["usage_missing"] == 0


def test_goodput_counts_requests_that_meet_every_objective():
    load = Load(model="m", num_prompts=3, input_len=1, output_len=2, vocab_size=9)
    fields = {"prompt_tokens": 1, "completion_tokens": 2}
    records = [
        StreamRecord(0.0, 0.0, 0.1, 0.2, [0.1], **fields),
        StreamRecord(0.0, 0.0, 0.1, 0.9, [0.8], **fields),
        StreamRecord(0.0, error="refused"),
    ]
    from jaxinfer.cli.client.load import LoadResult

    report = load_report(load, LoadResult(records, 0.0, 0.0, 1), {"ttft": 150, "tpot": 500})
    assert report["goodput"]["share"] == pytest.approx(1 / 3)
    assert report["goodput"]["requests_per_s"] == pytest.approx(1 / 0.9)


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--serve", "localhost:8000"], "is no URL of a server"),
        (["--serve", "http://127.0.0.1:9"], "can't reach http://127.0.0.1:9/v1/models"),
        (["--serve", "URL"], "answers HTTP 401; give --api-key"),
        (["--serve", "URL", "--api-key", SECRET, "--goodput", "speed:3"], "one of ttft, tpot"),
    ],
)
def test_what_can_not_begin_is_one_line(capsys, monkeypatch, flags, cause):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving(api_key=SECRET) as server:
        flags = [server.url if flag == "URL" else flag for flag in flags]
        assert main(flags) == 1
    message = capsys.readouterr().err
    assert cause in message
    assert message.count("\n") == 1


def test_the_key_comes_from_the_environment(capsys, monkeypatch):
    monkeypatch.setenv("JAXINFER_API_KEY", SECRET)
    with serving(api_key=SECRET) as server:
        assert report_of(capsys, "--serve", server.url, *SMALL)["num_completed"] == 6


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--request-rate", "3"], "required: --serve"),
        (["--serve", "http://x", "--num-prompts", "0"], "one positive integer"),
        (["--serve", "http://x", "--request-rate", "0"], "positive number or inf"),
    ],
)
def test_a_wrong_flag_is_refused(capsys, flags, cause):
    with pytest.raises(SystemExit):
        main(flags)
    assert cause in capsys.readouterr().err
