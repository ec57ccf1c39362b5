"""The application around its routes: probes, keys, administration, documentation."""

import asyncio
import contextlib
import json
import re

import pytest
from pydantic import TypeAdapter

from jaxinfer.errors import EngineRestartingError, StepError
from jaxinfer.server.openai.protocol.chat import ChatAnswer
from jaxinfer.server.openai.protocol.completion import CompletionAnswer
from jaxinfer.server.openai.protocol.responses.answer import ResponsesAnswer
from jaxinfer.server.openai.settings import ServerSettings
from tests.server.openai.fake_engine import FakeEngine

KEYS = ("sesame", "open-é")
OPEN = {"/health", "/ready"}
HEADERS = {"Authorization": "Bearer sesame"}


@pytest.fixture(scope="module")
def locked(make_client, tmp_path_factory):
    return make_client(
        api_keys=KEYS,
        enable_admin=True,
        enable_tokenizer_info=True,
        profile_directory=tmp_path_factory.mktemp("profile"),
    )


def operations(client):
    schema = client.get("/openapi.json", headers=HEADERS).json()
    return [
        (method.upper(), path, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_route_but_the_probes_needs_a_key(locked):
    paths = {path for _, path, _ in operations(locked)}
    assert {"/v1/completions", "/metrics", "/sleep", "/tokenizer_info", "/version"} <= paths
    for method, path, operation in operations(locked):
        status = locked.send(method, path).status_code
        assert (status == 401) == (path not in OPEN), path
        assert bool(operation.get("security")) == (path not in OPEN), path
    for path in ("/nope", "/openapi.json", "/docs", "/health/", "//health", "/health/../metrics"):
        # With a host, or the client takes what follows two slashes for one.
        assert locked.get(f"http://test{path}").status_code == 401, path


@pytest.mark.parametrize(
    "given",
    ["", "sesame", "Bearer", "Bearer ", "Bearer sesam", "Bearer sesamee", "Basic sesame"],
)
def test_a_wrong_key_is_a_401(locked, given):
    answer = locked.get("/v1/models", headers={"Authorization": given})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_any_of_the_keys_is_let_in(locked):
    for given in ("Bearer sesame", "bearer sesame"):
        assert locked.get("/v1/models", headers={"Authorization": given}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-API-Key": "sesame"}, 200),
        ({"X-API-Key": "sesame", "Authorization": "Bearer guess"}, 200),
        ({"X-API-Key": "guess", "Authorization": "Bearer sesame"}, 200),
        ({"X-API-Key": "guess"}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": "Bearer sesame"}, 401),
    ],
)
def test_a_key_may_come_as_anthropics_clients_send_it(locked, headers, status):
    assert locked.get("/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize("given", ["", "sesam", *KEYS])
def test_every_key_is_compared_whatever_is_sent(locked, monkeypatch, given):
    """In constant time: neither which key it is nor how much of one is right shows in it."""
    compared = []

    def noting(one, other):
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("secrets.compare_digest", noting)
    locked.get("/v1/models", headers={"Authorization": f"Bearer {given}".encode()})
    assert compared == [(32, 32)] * len(KEYS)


def test_web_sockets_are_closed_whatever_their_path(locked):
    sent = []

    async def send(message):
        sent.append(message["type"])

    scope = {"type": "websocket", "path": "/health", "headers": []}
    asyncio.run(locked.app(scope, None, send))
    assert sent == ["websocket.close"]


@pytest.mark.parametrize("host", ["x/health?", "x/health#", "health", "[", "x\\health"])
def test_the_host_header_opens_no_route(locked, host):
    for path in ("/v1/models", "/metrics"):
        assert locked.get(path, headers={"Host": host}).status_code == 401
    answer = locked.get("/version/", headers={"Host": host, **HEADERS})
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_administration_is_off_by_default_and_needs_a_key(client, locked):
    for path in ("/reset_prefix_cache", "/sleep", "/wake_up", "/pause", "/rebalance_experts"):
        answer = client.post(path)
        assert answer.status_code == 404
        assert f"{path}: this route is off; `jaxinfer serve --enable-admin`" in answer.text
    answer = client.get("/tokenizer_info")
    assert answer.status_code == 404
    assert "--enable-tokenizer-info" in answer.text
    with pytest.raises(ValueError, match="needs api_keys"):
        ServerSettings(enable_admin=True)


def test_the_prefix_cache_can_be_emptied(locked):
    def cached():
        body = {"prompt": list(range(300, 340)), "max_tokens": 1}
        usage = locked.post("/v1/completions", body, headers=HEADERS).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    cached()
    assert cached() > 0
    assert locked.post("/reset_prefix_cache", headers=HEADERS).json() == {"status": "ok"}
    assert cached() == 0


class Sleeper(FakeEngine):
    """Notes the calls that administration makes."""

    def __init__(self, engine):
        super().__init__(engine)
        self.calls = []
        self.is_sleeping = True

    async def sleep(self, level, mode):
        self.calls.append((level, mode))

    async def wake_up(self, tags):
        if tags == ["scheduling"]:
            raise ValueError("tags: the weights are asleep")
        self.calls.append(tags)


def test_what_an_engine_can_do_is_done_and_the_rest_is_a_501(make_client, engine):
    sleeper = Sleeper(engine)
    client = make_client(sleeper, api_keys=KEYS, enable_admin=True)

    def post(path):
        return client.post(path, headers=HEADERS).status_code

    assert post("/sleep?level=2&mode=wait") == 200
    assert post("/wake_up?tags=weights&tags=kv_cache") == 200
    assert post("/wake_up") == 200
    assert sleeper.calls == [(2, "wait"), ["weights", "kv_cache"], None]
    assert post("/wake_up?tags=scheduling") == 400
    for name, value in {"level": 3, "mode": "never"}.items():
        answer = client.post(f"/sleep?{name}={value}", headers=HEADERS)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == name
    answer = client.post("/sleep?levl=2", headers=HEADERS)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "levl"
    assert post("/pause") == 501
    assert post("/start_profile") == 501
    assert client.get("/is_sleeping", headers=HEADERS).json() == {"is_sleeping": True}


def test_a_paused_engine_keeps_requests_waiting_or_refuses_them(locked):
    body = {"prompt": [1, 2, 3], "max_tokens": 1}

    def admin(method, path, status=200):
        answer = locked.send(method, path, headers=HEADERS)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def while_paused():
        async with locked.connect() as client:
            waiting = asyncio.ensure_future(
                client.post("/v1/completions", json=body, headers=HEADERS)
            )
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await client.post("/resume", headers=HEADERS)
            return (await waiting).status_code

    assert admin("GET", "/is_paused") == {"is_paused": False}
    for mode in ("abort", "wait", "keep", "abort"):  # and again
        assert admin("POST", f"/pause?mode={mode}") == {"status": "paused"}
        assert admin("GET", "/is_paused") == {"is_paused": True}
    assert admin("GET", "/is_sleeping") == {"is_sleeping": False}
    assert asyncio.run(while_paused()) == 200
    assert admin("GET", "/is_paused") == {"is_paused": False}
    admin("POST", "/pause?refuse=true")
    for stream in (False, True):
        fields = {**body, "stream": stream}
        answer = locked.post("/v1/completions", fields, headers=HEADERS)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["code"] == "engine_unavailable"
    admin("POST", "/pause")  # which lets them wait
    assert asyncio.run(while_paused()) == 200
    assert admin("POST", "/resume") == {"status": "resumed"}
    assert admin("POST", "/resume") == {"status": "resumed"}
    assert admin("POST", "/pause?refuse=yes!", 400)["error"]["param"] == "refuse"


def test_a_pause_keeps_the_prefix_cache_where_it_is_asked_to(locked):
    def cached():
        body = {"prompt": list(range(400, 440)), "max_tokens": 1}
        usage = locked.post("/v1/completions", body, headers=HEADERS).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    cached()
    for query, is_kept in (("?clear_cache=false", True), ("", False), ("?clear_cache=true", False)):
        locked.post("/pause" + query, headers=HEADERS)
        locked.post("/resume", headers=HEADERS)
        assert (cached() > 0) == is_kept


def test_an_engine_that_sleeps_is_a_503(locked):
    locked.post("/sleep?level=1", headers=HEADERS)
    answer = locked.post("/v1/completions", {"prompt": [1], "max_tokens": 1}, headers=HEADERS)
    locked.post("/wake_up", headers=HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    said = answer.json()["error"]["message"]
    assert said == "the engine is asleep (weights, kv_cache, scheduling); send POST /wake_up first"


def test_a_profile_is_written_where_the_operator_says(locked):
    early = locked.post("/stop_profile", headers=HEADERS)
    assert (early.status_code, "send POST /start_profile first" in early.text) == (409, True)
    assert locked.post("/start_profile", headers=HEADERS).status_code == 200
    again = locked.post("/start_profile", headers=HEADERS)
    assert (again.status_code, "send POST /stop_profile first" in again.text) == (409, True)
    assert locked.post("/stop_profile", headers=HEADERS).status_code == 200
    assert any(locked.app.state.front.settings.profile_directory.rglob("*.pb"))


def test_a_profile_that_cannot_be_written_is_a_clear_500(make_client, tmp_path):
    (tmp_path / "file").write_text("")
    client = make_client(
        api_keys=KEYS, enable_admin=True, profile_directory=tmp_path / "file" / "traces"
    )
    answer = client.post("/start_profile", headers=HEADERS)
    assert answer.status_code == 500
    assert "can't write a profile" in answer.json()["error"]["message"]


def test_tokenizer_info_is_what_prompts_are_made_with(locked, engine):
    info = locked.get("/tokenizer_info", headers=HEADERS).json()
    assert "messages" in info["chat_template"]
    assert engine.tokenizer.token_to_id(info["eos_token"]) in engine.tokenizer.eos_token_ids


def test_probes_answer_get_and_head(client):
    for path in ("/health", "/ready"):
        assert client.get(path).status_code == 200
        assert client.send("HEAD", path).status_code == 200
    for path in ("/metrics", "/v1/models", "/version"):
        answer = client.send("HEAD", path)
        assert answer.status_code == 200
        assert answer.content == b""
    assert client.send("HEAD", "/nope").status_code == 404


class Dead(FakeEngine):
    async def check_health(self):
        raise StepError("it failed at /usr/lib")


def test_probes_say_when_the_engine_has_ended(make_client, engine):
    answer = make_client(Dead(engine)).get("/health")
    assert answer.status_code == 503
    assert "/usr" not in answer.text


class Restarting(FakeEngine):
    async def check_health(self):
        raise EngineRestartingError("it is started anew", retry_after=5)


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_say_when_an_engine_that_is_started_anew_may_be_back(make_client, engine, path):
    answer = make_client(Restarting(engine)).get(path)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "5"


def test_models_have_all_their_names(make_client):
    client = make_client(served_model_names=("tiny", "org/big"))
    cards = client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["tiny", "org/big"]
    assert cards[0]["max_model_len"] == 256
    assert client.get("/v1/models/org/big").json()["root"] == "tiny"
    assert client.get("/v1/models/none").status_code == 404
    answer = client.post("/v1/completions", {"model": "org/big", "prompt": [1], "max_tokens": 1})
    assert answer.json()["model"] == "tiny"


def test_metrics_count_what_clients_got(client):
    def count(name):
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    names = "jaxinfer:generation_tokens_total", "jaxinfer:prompt_tokens_total"
    before = [count(name) for name in names]
    body = {"prompt": [[7, 8, 9], [7]], "max_tokens": 5, "ignore_eos": True}
    usage = client.post("/v1/completions", body).json()["usage"]
    gained = [count(name) - old for name, old in zip(names, before, strict=True)]
    assert gained == [usage["completion_tokens"], usage["prompt_tokens"]] == [10, 4]


class Recorder:
    def __init__(self):
        self.seen = []

    async def watch(self, outputs, *, delta):
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                self.seen.append((delta, output.finished))
                yield output

    def render(self, engine_metrics):
        return f"{len(self.seen)} of {len(engine_metrics) > 0}".encode()


def test_telemetry_sees_every_output(make_client):
    recorder = Recorder()
    client = make_client(telemetry=recorder)
    body = {"prompt": [[1], [2]], "max_tokens": 2, "ignore_eos": True}
    client.post("/v1/completions", body)
    assert recorder.seen == [(False, True)] * 2
    client.post("/v1/completions", {**body, "stream": True})
    assert recorder.seen.count((True, True)) == 2
    assert client.get("/metrics").text == f"{len(recorder.seen)} of True"


def test_documentation_is_complete_and_true(locked):
    for method, path, operation in operations(locked):
        assert "422" not in operation["responses"]
        errors = {"503": "ErrorAnswer", "529": "MessageError"}
        if not path.startswith("/v1/models"):  # both APIs have that
            errors.pop("503" if path.startswith("/v1/messages") else "529")
        known = set(operation["responses"]) & {"503", "529"}
        assert known == set(errors)
        assert {"400", "401", "404", "413", "500"} <= set(operation["responses"]), path
        for status in ("400", *errors):
            schema = operation["responses"][status]["content"]["application/json"]["schema"]
            choices = [each["$ref"] for each in schema.get("anyOf", [schema])]
            expected = [errors[status]] if status in errors else errors.values()
            assert [each.rsplit("/", 1)[1] for each in choices] == [*expected]
        if method == "POST" and path.startswith("/v1/") and "501" not in operation["responses"]:
            assert operation["requestBody"]
    text = locked.get("/openapi.json", headers=HEADERS).text
    assert "ValidationError" not in text
    known = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) == set(known)


@pytest.mark.parametrize(
    ("path", "body", "documented"),
    [
        (
            "/v1/completions",
            {"prompt": [1], "logprobs": 1, "echo": True, "prompt_logprobs": 1},
            CompletionAnswer,
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "a"}],
                "logprobs": True,
                "top_logprobs": 1,
                "return_token_ids": True,
                "max_tokens": 4,
            },
            ChatAnswer,
        ),
        ("/v1/responses", {"input": "a", "max_output_tokens": 4}, ResponsesAnswer),
    ],
)
def test_answers_are_as_documented(client, path, body, documented):
    answer = client.post(path, body).json()
    checked = TypeAdapter(documented).validate_python(answer, strict=True)
    assert checked == answer


def test_cross_origin_requests_get_no_permission(client):
    answer = client.get("/v1/models", headers={"Origin": "http://evil"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
