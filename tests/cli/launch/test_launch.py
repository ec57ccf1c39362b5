"""`jaxinfer launch` with programs that note how they were started."""

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import httpx
import psutil
import pytest

from jaxinfer import launch
from jaxinfer.cli.launch import background_server
from jaxinfer.cli.launch.programs import PROGRAMS
from tests.cli.client.sse_server import SECRET, serving
from tests.cli.service.running_service import OPTIONS

_PROGRAM = """#!{python}
import json, os, sys
with open({file!r}, "w") as file:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, file)
{body}
"""
_SERVER = """
import http.server, json, signal, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        models = {"data": [{"id": "toy", "max_model_len": 1000}]}
        body = json.dumps(models if self.path == "/v1/models" else {}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("JAXINFER_API_KEY", raising=False)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that puts a program on the PATH and returns the file that it writes."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def install(name, body=""):
        file, program = tmp_path / f"{name}.json", tmp_path / name
        program.write_text(_PROGRAM.format(python=sys.executable, file=str(file), body=body))
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        return file

    return install


def models(method, path, body):
    """A server with two models."""
    listed = {"data": [{"id": "toy", "max_model_len": 1000}, {"id": "other"}]}
    return 200, [json.dumps(listed).encode()]


def port_of(url):
    return url.rpartition(":")[2]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def started(file):
    noted = json.loads(file.read_text())
    return noted["arguments"], noted["environment"]


def test_claude_gets_variables_and_its_own_arguments(installed, monkeypatch):
    file = installed("claude", "sys.exit(7)")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-real")
    with serving(models) as server:
        port = port_of(server.url)
        assert launch.main(["claude", "--port", port, "--", "-p", "hi", "--", "x"]) == 7
    arguments, environment = started(file)
    assert arguments == ["-p", "hi", "--", "x"]
    assert environment["ANTHROPIC_BASE_URL"] == server.url
    assert (environment["ANTHROPIC_AUTH_TOKEN"], environment["ANTHROPIC_API_KEY"]) == (
        "jaxinfer",
        "",
    )
    names = {name: value for name, value in environment.items() if name.endswith("_MODEL")}
    assert {f"ANTHROPIC_DEFAULT_{kind}_MODEL" for kind in ("HAIKU", "SONNET", "OPUS")} <= set(names)
    assert {"ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL"} <= set(names)
    assert set(names.values()) == {"toy"}
    assert environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "1000"


def test_codex_gets_a_provider_of_responses(installed):
    file = installed("codex")
    with serving(models) as server:
        flags = ["--port", port_of(server.url), "--served-model-name", "other"]
        assert launch.main(["codex", *flags, "--", "exec", "hi"]) == 0
    arguments, environment = started(file)
    assert arguments[-2:] == ["exec", "hi"]
    assert set(arguments[:-2:2]) == {"-c"}
    config = tomllib.loads("\n".join(arguments[1:-2:2]))
    assert (config["model"], config["model_provider"]) == ("other", "jaxinfer")
    provider = config["model_providers"]["jaxinfer"]
    assert (provider["base_url"], provider["wire_api"]) == (f"{server.url}/v1", "responses")
    assert environment[provider["env_key"]] == "jaxinfer"
    # The server refuses both kinds of tools.
    assert (config["web_search"], config["features"]["multi_agent"]) == ("disabled", False)
    assert "model_context_window" not in config, "the server does not say it of that model"


def test_opencode_gets_a_provider_in_one_variable(installed):
    file = installed("opencode")
    with serving(models) as server:
        assert launch.main(["opencode", "--port", port_of(server.url)]) == 0
    config = json.loads(started(file)[1]["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == "jaxinfer/toy"
    provider = config["provider"]["jaxinfer"]
    assert provider["options"] == {"baseURL": f"{server.url}/v1", "apiKey": "jaxinfer"}
    assert provider["models"]["toy"]["limit"] == {"context": 1000, "output": 250}


@pytest.mark.parametrize("is_flag", [True, False])
def test_a_key_reaches_the_program(installed, monkeypatch, is_flag):
    file = installed("claude")
    flags = ["--api-key", SECRET] if is_flag else []
    if not is_flag:
        monkeypatch.setenv("JAXINFER_API_KEY", SECRET)
    with serving(models) as server:
        assert launch.main(["claude", "--port", port_of(server.url), *flags]) == 0
    assert started(file)[1]["ANTHROPIC_AUTH_TOKEN"] == SECRET


@pytest.mark.parametrize(
    ("flags", "behaviour", "cause"),
    [
        (["--model", "Qwen/Qwen3-8B"], models, "serves toy, other, not Qwen/Qwen3-8B; leave out"),
        ([], lambda *_: (404, [b"{}"]), "/health answers HTTP 404, so that is no server of models"),
        ([], lambda *_: (200, [b"{}"]), "/v1/models lists no model"),
        ([], lambda *_: (200, [b'{"data": []}']), "/v1/models lists no model"),
        (["--uds", "/tmp/x"], models, "leave out --uds and --port 0"),
    ],
)
def test_a_server_that_does_not_fit_is_one_line(installed, capsys, flags, behaviour, cause):
    file = installed("claude")
    with serving(behaviour) as server:
        assert launch.main(["claude", "--port", port_of(server.url), *flags]) == 1
    message = capsys.readouterr().err
    assert message.startswith("jaxinfer launch: error: ")
    assert cause in message
    assert message.count("\n") == 1
    assert not file.exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_not_installed_is_told_how(name, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    port = free_port()
    assert launch.main([name, "--port", str(port), "--model", "m", "--", "a b"]) == 1
    output = capsys.readouterr()
    assert PROGRAMS[name].install in output.err
    assert output.err.count("\n") == 1
    *exports, command = output.out.splitlines()
    assert all(line.startswith("export ") for line in exports)
    assert shlex.split(command)[0] == name
    assert shlex.split(command)[-1] == "a b"
    assert f"http://127.0.0.1:{port}" in output.out


def test_print_starts_nothing_and_can_be_read_by_a_shell(installed, capfd):
    file = installed("claude")
    port = str(free_port())
    assert launch.main(["claude", "--print", "--port", port, "--model", "my model"]) == 0
    script = capfd.readouterr().out
    assert not file.exists()
    subprocess.run(["/bin/sh", "-c", script], check=True)
    assert started(file)[1]["ANTHROPIC_MODEL"] == "my model"


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ([], "the following arguments are required: PROGRAM"),
        (["vim"], "invalid choice: 'vim'"),
        (["claude", "--prot", "1"], "unrecognized arguments: --prot"),
        (["claude", "--port", "x"], "expected a port"),
    ],
)
def test_a_wrong_command_line_is_one_line(capsys, arguments, cause):
    with pytest.raises(SystemExit):
        launch.main(arguments)
    message = capsys.readouterr().err
    assert cause in message
    assert message.count("\n") == 1


@pytest.fixture
def toy_server(monkeypatch):
    """The processes of servers that are started, which serve no model."""
    processes = []

    def start(arguments, log):
        command = [sys.executable, "-c", _SERVER, arguments[arguments.index("--port") + 1]]
        processes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return processes[-1]

    monkeypatch.setattr(background_server, "_start", start)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("body", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_a_server_is_started_where_none_answers_and_ends_with_the_program(
    installed, toy_server, capsys, body, status
):
    file = installed("claude", body)
    port = str(free_port())
    assert launch.main(["claude", "--port", port]) == status
    assert started(file)[1]["ANTHROPIC_MODEL"] == "toy"
    (process,) = toy_server
    assert process.poll() is not None
    assert f"starting a server at http://127.0.0.1:{port}" in capsys.readouterr().err
    assert launch.main(["claude", "--port", port, "-q"]) == status
    assert capsys.readouterr().err == ""
    assert len(toy_server) == 2, "the first has ended, so that another is started"


def test_a_server_that_runs_is_not_ended(installed, toy_server):
    installed("claude")
    with serving(models) as server:
        assert launch.main(["claude", "--port", port_of(server.url)]) == 0
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert not toy_server


def test_a_server_that_does_not_start_says_why(installed, capsys):
    file = installed("claude")
    flags = ["--port", str(free_port()), "--profiler-dir", "x"]
    assert launch.main(["claude", *flags]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "has ended: " in message
    assert "--profiler-dir needs --enable-admin" in message
    assert not file.exists()


_LAUNCH = """
import sys
from jaxinfer import launch
from jaxinfer.cli.launch import background_server
import subprocess
def start(arguments, log):
    command = [sys.executable, "-c", {server!r}, arguments[1]]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
background_server._start = start
sys.exit(launch.main(["claude", "--port", {port!r}]))
"""


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)],
)
def test_what_ends_the_command_ends_program_and_server(installed, number, status):
    file = installed("claude", "import time; time.sleep(60)")
    command = [sys.executable, "-c", _LAUNCH.format(server=_SERVER, port=str(free_port()))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    children = wait_for_children(process, file)
    process.send_signal(number)
    assert process.wait(30) == status
    assert not any(child.is_running() for child in children)


def test_ctrl_c_is_the_programs_own(installed):
    file = installed("claude", "import time; time.sleep(0.4); sys.exit(5)")
    command = [sys.executable, "-c", _LAUNCH.format(server=_SERVER, port=str(free_port()))]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for_children(process, file)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 5


def wait_for_children(process, file):
    """The processes of the server and the program, once the latter runs."""
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text().endswith("}")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return psutil.Process(process.pid).children(recursive=True)


_ASK = """
import urllib.request
data = json.dumps({"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 5,
    "messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"Content-Type": "application/json", "X-API-Key": os.environ["ANTHROPIC_AUTH_TOKEN"]}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
answer = json.load(urllib.request.urlopen(urllib.request.Request(url, data, headers)))
sys.exit(answer["usage"]["output_tokens"])
"""


@pytest.mark.slow
def test_a_real_server_answers_the_program(installed):
    installed("claude", _ASK)
    options = [*OPTIONS, "--port", str(free_port()), "--api-key", SECRET, "-asc", "1"]
    assert launch.main(["claude", *options]) == 5


def test_the_programs_are_documented():
    page = (Path(__file__).parents[3] / "docs" / "tasks" / "agents.md").read_text()
    for name, program in PROGRAMS.items():
        assert f"jaxinfer launch {name}" in page
        assert program.install in page
