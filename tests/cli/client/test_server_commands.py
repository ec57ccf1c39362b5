"""`jaxinfer generate --url` and `jaxinfer chat --url` talk to a running OpenAI server."""

import io
import json

import pytest

from jaxinfer import chat, generate
from tests.cli.client.sse_server import DONE, SECRET, event, serving


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    for name in ("JAXINFER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def answered(method, path, body):
    """A model that repeats the prompt, or the last message, in capitals."""
    if path == "/v1/models":
        return 200, [json.dumps({"data": [{"id": "toy"}, {"id": "other"}]}).encode()]
    said = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    if "fail" in said:
        return 400, [b'{"error":{"message":"max_tokens is too large","param":"max_tokens"}}']
    pieces = []
    for i, character in enumerate(said.upper()):
        reason = "stop" if i == len(said) - 1 else None
        choice = {"index": 0, "finish_reason": reason}
        choice |= {"delta": {"content": character}} if "messages" in body else {"text": character}
        pieces.append(event({"choices": [choice]}))
    counted = {"prompt_tokens": 3, "completion_tokens": len(said)}
    return 200, [*pieces, event({"choices": [], "usage": counted}), DONE]


@pytest.fixture
def server():
    with serving(answered) as server:
        yield server


def talk(monkeypatch, lines, *flags):
    data = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    return chat.main([*flags])


def test_a_prompt_is_completed_with_the_flags_of_sampling(server, capsys):
    flags = ["--temp", "0.5", "--seed", "7", "--stop", "x"]
    assert generate.main(["--url", server.url, "-p", "abc", *flags]) == 0
    output = capsys.readouterr()
    assert output.out == "ABC\n"
    for figure in ("prompt 3 tokens", "generation 3 tokens", "first token", "ended by stop"):
        assert figure in output.err
    assert "memory" not in output.err, "that is the server's"
    sent = {key: value for key, value in server.requests[-1].items() if "stream" not in key}
    given = {"temperature": 0.5, "seed": 7, "stop": ["x"], "max_tokens": 256}
    assert sent == {"model": "toy", "prompt": "abc", **given}


def test_a_chat_prompt_is_sent_as_messages(server, capsys):
    flags = ["--chat", "--system", "be kind", "--no-thinking", "--served-model-name", "other"]
    assert generate.main(["--url", server.url, "-p", "abc", "-q", *flags]) == 0
    assert capsys.readouterr() == ("ABC\n", "")
    body = server.requests[-1]
    assert body["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "abc"},
    ]
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["model"] == "other"
    assert len(server.requests) == 1, "the name was given, so that no list is needed"


def test_many_prompts_are_answered_in_order_and_one_may_fail(server, capsys, tmp_path):
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [{"prompt": f"word {i}", "id": i, "min_tokens": i} for i in range(100)]
    lines[7]["prompt"] = "fail"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--url", server.url, "--prompts-file", str(prompts), "--output", str(answers)]
    assert generate.main(flags) == 1
    error = capsys.readouterr().err
    assert f"{prompts}:8: {server.url} answers HTTP 400: max_tokens is too large" in error
    records = [json.loads(line) for line in answers.read_text().splitlines()]
    assert [record["id"] for record in records] == [*range(100)]
    assert [record["text"] for record in records] == [
        "" if i == 7 else f"WORD {i}" for i in range(100)
    ]
    assert records[3]["statistics"]["generation_tokens"] == len("word 3")
    assert {body.get("min_tokens") for body in server.requests} >= {*range(100)}
    assert generate.main([*flags, "--resume", "-q"]) == 0, "all are answered already"


def test_a_conversation_is_sent_whole_and_survives_an_error(server, monkeypatch, capsys):
    lines = ["one", "please fail", "/set temperature 0.3", "two"]
    assert talk(monkeypatch, lines, "--url", server.url) == 0
    output = capsys.readouterr()
    assert output.out == "ONE\nTWO\n"
    assert "jaxinfer chat: error: " in output.err
    assert "--max-tokens is too large" in output.err
    assert "generation 3 tokens" in output.err
    body = server.requests[-1]
    assert [message["content"] for message in body["messages"]] == ["one", "ONE", "two"]
    assert body["temperature"] == 0.3
    assert "max_tokens" not in body


def test_marked_thinking_is_shown_and_not_kept(monkeypatch, capsys):
    def thinks(method, path, body):
        if path == "/v1/models":
            return answered(method, path, body)
        thought = event({"choices": [{"index": 0, "delta": {"reasoning_content": "hm, "}}]})
        status, pieces = answered(method, path, body)
        return status, [thought, *pieces]

    with serving(thinks) as server:
        assert talk(monkeypatch, ["one", "two"], "--url", server.url, "-q") == 0
    assert capsys.readouterr().out == "hm, ONE\nhm, TWO\n"
    assert server.requests[-1]["messages"][1]["content"] == "ONE"


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ([event({"error": {"message": "the engine has failed"}})], "the engine has failed"),
        ([b"data: nonsense\n\n"], "an event that is no JSON object"),
        ([event({"choices": []})], "closed the connection before the answer's end"),
    ],
)
def test_a_stream_that_breaks_is_one_line(capsys, pieces, cause):
    def breaks(method, path, body):
        return answered(method, path, body) if path == "/v1/models" else (200, pieces)

    with serving(breaks) as server:
        assert generate.main(["--url", server.url, "-p", "abc", "-q"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("jaxinfer generate: error: ")
    assert cause in message
    assert message.count("\n") == 1


def test_a_key_comes_from_a_flag_or_the_environment(monkeypatch, capsys):
    with serving(answered, api_key=SECRET) as server:
        ask = ["--url", server.url, "-p", "abc", "-q"]
        assert generate.main(ask) == 1
        assert "answers HTTP 401; give --api-key" in capsys.readouterr().err
        assert generate.main([*ask, "--api-key", SECRET]) == 0
        monkeypatch.setenv("OPENAI_API_KEY", "another")
        monkeypatch.setenv("JAXINFER_API_KEY", SECRET)
        assert generate.main(ask) == 0


@pytest.mark.parametrize("command", [generate, chat])
@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (["--url", "http://x", "--dtype", "float32"], "--url takes no --dtype"),
        (["--url", "http://x", "--model", "m"], "--served-model-name names one"),
        (["--api-key", "k"], "--api-key needs --url"),
    ],
)
def test_flags_that_would_be_ignored_are_refused(capsys, command, flags, cause):
    with pytest.raises(SystemExit):
        command.main(flags)
    assert cause in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "cause"),
    [("localhost", "is no URL of a server"), ("http://127.0.0.1:9", "can't reach")],
)
def test_a_server_that_is_not_there_is_one_line(capsys, url, cause):
    assert chat.main(["--url", url]) == 1
    message = capsys.readouterr().err
    assert cause in message
    assert message.count("\n") == 1
