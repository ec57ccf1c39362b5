"""The processes of `jaxinfer serve`: what each one's end does to the others, and to clients."""

import concurrent.futures
import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import openai
import psutil
import pytest

from jaxinfer import LLM, SamplingParams
from tests.cli.service.running_service import OPTIONS, PROMPT, RunningService

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service():
    running = RunningService("--api-server-count", "2")
    yield running
    running.close()


def until(condition, seconds=60.0):
    """Wait until it holds, for so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_answers_are_those_of_an_engine_in_one_process(service):
    prompts = [PROMPT, "What is 12 + 34?", "🦊 said 你好 to the"]
    with LLM(max_num_seqs=4, num_kv_blocks=200, max_model_len=800, show_progress=False) as llm:
        params = SamplingParams(temperature=0, max_tokens=24, stop=[" the"], logprobs=2)
        expected = [llm.generate(p, params, use_tqdm=False)[0].outputs[0] for p in prompts]

    def ask(prompt):
        return service.client.completions.create(
            model="jaxinfer", prompt=prompt, max_tokens=24, temperature=0, stop=" the", logprobs=2
        ).choices[0]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, prompts * 4))
    for answer, wanted in zip(answers, expected * 4, strict=True):
        assert answer.text == wanted.text
        assert answer.finish_reason == wanted.finish_reason
        # Other batch mates, other shapes: the last bits differ.
        chosen = [next(iter(entry.values())).logprob for entry in wanted.logprobs]
        assert answer.logprobs.token_logprobs == pytest.approx(chosen, abs=1e-3)


def test_vectors_are_those_of_an_engine_in_one_process(service):
    texts = [PROMPT, "What is 12 + 34?"]
    with LLM(max_num_seqs=4, num_kv_blocks=200, max_model_len=800, show_progress=False) as llm:
        expected = [output.embedding.tolist() for output in llm.embed(texts)]
    answer = service.client.embeddings.create(model="jaxinfer", input=texts)
    for each, vector in zip(answer.data, expected, strict=True):
        assert each.embedding == pytest.approx(vector, abs=1e-5)


def test_decisions_and_relevance_are_those_of_an_engine_in_one_process(service):
    labels, documents = [" there", " a"], ["A red kite.", "Gravity is a force."]
    with LLM(max_num_seqs=4, num_kv_blocks=200, max_model_len=800, show_progress=False) as llm:
        (decision,) = llm.decide(PROMPT, labels)
        ranked = llm.rerank("A kite?", documents)
    body = {"prompt": PROMPT, "labels": labels}
    (found,) = service.client.post("/decisions", body=body, cast_to=object)["data"]
    assert found["probabilities"] == pytest.approx(decision.probabilities, abs=1e-5)
    body = {"query": "A kite?", "documents": documents}
    results = service.client.post("/rerank", body=body, cast_to=object)["results"]
    assert [each["index"] for each in results] == [each.index for each in ranked]
    for result, own in zip(results, ranked, strict=True):
        assert result["relevance_score"] == pytest.approx(own.relevance_score, abs=1e-5)


def test_front_ends_load_no_jax(service):
    service.client.embeddings.create(model="jaxinfer", input=PROMPT)
    service.client.post("/rerank", body={"query": "a", "documents": ["b"]}, cast_to=object)
    for child in service.children("front_end_process"):
        assert not any("jaxlib" in each.path for each in child.memory_maps())


def test_the_socket_is_this_users_alone(service):
    (engine,) = service.children("engine_process")
    paths = {each.laddr for each in engine.net_connections("unix") if each.laddr}
    (path,) = {path for path in paths if path.endswith("/engine")}
    stat = os.stat(path)
    assert stat.st_mode & 0o777 == 0o600
    listening = [c for c in engine.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert not listening


def test_a_port_in_use_is_one_line(service):
    port = service.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "jaxinfer.serve", "--port", port]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port} of 127.0.0.1: Address already in use" in done.stderr


HEADERS_WITHOUT_END = [
    b"GET /health HTTP/1.1\r\nX-One: ",  # a line without end
    b"GET /health HTTP/1.1\r\nHost: x\r\n",  # lines without end, below
    b"GET /",  # a path without end
]


@pytest.mark.parametrize("begin", HEADERS_WITHOUT_END)
def test_headers_of_200_mb_are_cut_off_early(service, begin):
    port = int(service.url.rsplit(":", 1)[1])
    piece = b"X-More: 1\r\n" * 6000 if begin.endswith(b"x\r\n") else b"a" * 65_536
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(begin)
        try:
            while sent < 200 << 20:
                sent += connection.send(piece)
        except OSError:  # it was closed
            pass
    assert sent < 16 << 20  # what both sides' sockets hold
    assert service.health() == 200


def test_a_client_that_goes_frees_its_slot(service):
    stream = service.stream()
    until(lambda: service.metric("num_requests_running") == 1)  # once its programs are compiled
    stream.response.close()
    until(lambda: service.metric("num_requests_running") == 0)


def test_answers_and_clients_that_go_leave_no_descriptor(service):
    def ask(index):
        stream = service.stream(max_tokens=40)
        if index % 3 == 0:
            stream.response.close()
        else:
            list(stream)

    def descriptors():
        until(lambda: service.metric("num_requests_running") == 0)
        time.sleep(0.2)  # for connections to be closed
        return [child.num_fds() for child in service.children()]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(24)))
        before = descriptors()
        list(pool.map(ask, range(48)))
        after = descriptors()
    assert all(now <= then + 4 for now, then in zip(after, before, strict=True)), (before, after)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 1.5])
def test_a_signal_while_it_starts_ends_everything(seconds):
    command = [sys.executable, "-m", "jaxinfer.serve", "--port", "0", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    until(lambda: len(psutil.Process(process.pid).children()) == 2)
    time.sleep(seconds)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in said
    assert not psutil.wait_procs(children, timeout=60)[1]


def front_ends_of(service, streams):
    """The front end that each stream comes from."""
    ports = [
        stream.response.extensions["network_stream"].get_extra_info("client_addr")[1]
        for stream in streams
    ]
    held = {
        connection.raddr.port: child
        for child in service.children("front_end_process")
        for connection in child.net_connections("tcp")
        if connection.raddr
    }
    return [held[port] for port in ports]


def test_a_front_end_that_is_killed_is_named_and_replaced_and_the_other_goes_on(service):
    streams = [service.stream() for _ in range(4)]
    holders = front_ends_of(service, streams)
    killed = holders[-1]  # of the newest stream: older ones may have ended on a busy machine
    killed.kill()
    service.wait_for_line(r"front end \d's process was killed by SIGKILL and is replaced", 60)
    for stream, holder in zip(streams, holders, strict=True):
        if holder != killed:
            assert list(stream)[-1].choices[0].finish_reason == "length"
        elif stream is not streams[-1]:
            with contextlib.suppress(openai.APIError, httpx.HTTPError):
                list(stream)
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        list(streams[-1])
    until(lambda: len(service.children("front_end_process")) == 2)
    assert service.metric("num_requests_running") == 0
    assert service.health() == 200


def test_sigterm_lets_requests_end_and_leaves_nothing(service):
    children = service.children()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream = service.stream()  # long enough for all that is asked meanwhile
        answer = pool.submit(list, stream)
        service.process.send_signal(signal.SIGTERM)
        until(lambda: service.health() == 503)
        with pytest.raises(openai.InternalServerError) as refused:
            service.client.completions.create(model="jaxinfer", prompt="a")
        assert refused.value.status_code == 503
        assert answer.result()[-1].choices[0].finish_reason == "length"
    assert service.process.wait(60) == 0
    assert not psutil.wait_procs(children, timeout=60)[1]
    address = ("127.0.0.1", int(service.url.rsplit(":", 1)[1]))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_second_signal_aborts_what_runs():
    service = RunningService()
    try:
        stream = service.stream()
        service.process.send_signal(signal.SIGTERM)
        until(lambda: service.health() == 503)
        service.process.send_signal(signal.SIGTERM)
        assert list(stream)[-1].choices[0].finish_reason in ("abort", "length")
        assert service.process.wait(60) == 0
    finally:
        service.close()


def test_an_engine_that_is_killed_is_started_anew_and_ends_everything_when_it_is_killed_again():
    service = RunningService("--api-server-count", "2")
    try:
        front_ends = service.children("front_end_process")
        streams = [service.stream() for _ in range(3)]
        (engine,) = service.children("engine_process")
        engine.kill()
        service.wait_for_line("the engine's process was killed by SIGKILL and is started anew", 60)
        for stream in streams:
            with pytest.raises(openai.APIError, match="the engine's process has ended"):
                list(stream)
        until(lambda: service.health() == 503)
        with pytest.raises(openai.InternalServerError, match="started anew") as refused:
            service.client.completions.create(model="jaxinfer", prompt="a")
        assert refused.value.status_code == 503
        assert refused.value.code == "engine_restarting"
        assert int(refused.value.response.headers["Retry-After"]) > 0
        for path in ("health", "ready", "metrics"):
            answer = httpx.get(f"{service.url}/{path}", timeout=60)
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) > 0

        service.wait_for_line("the engine serves again", 120)
        for _ in range(4):  # so that both front ends are asked
            answer = service.client.completions.create(model="jaxinfer", prompt="a", max_tokens=3)
            assert answer.usage.completion_tokens == 3
        assert service.health() == 200
        assert service.children("front_end_process") == front_ends

        children = service.children()
        stream = service.stream()
        (engine,) = service.children("engine_process")
        engine.kill()
        service.wait_for_line("process was killed by SIGKILL again; the service ends", 60)
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            list(stream)
        assert service.process.wait(60) == 1
        assert not psutil.wait_procs(children, timeout=60)[1]
    finally:
        service.close()


def test_nothing_survives_a_parent_that_is_killed():
    service = RunningService("--api-server-count", "2")
    try:
        service.stream()
        children = service.children()
        assert len(children) >= 3
        service.children("front_end_process")[0].suspend()
        (engine,) = service.children("engine_process")
        paths = {each.laddr for each in engine.net_connections("unix") if each.laddr}
        service.process.kill()
        assert not psutil.wait_procs(children, timeout=60)[1]
        assert not any(os.path.exists(os.path.dirname(path)) for path in paths)
    finally:
        service.close()


def test_a_model_that_is_not_there_is_one_line():
    command = [sys.executable, "-m", "jaxinfer.serve", "no/such/model", "--port", "0", "--quiet"]
    environment = {"HF_HUB_OFFLINE": "1", "PATH": "", "HOME": "/nonexistent"}
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "no/such/model" in done.stderr


def test_a_service_whose_standard_error_is_full_answers_and_replaces_a_front_end():
    command = [sys.executable, "-m", "jaxinfer.serve", *OPTIONS, "--access-log"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        said = b""
        while b"/v1 with model" not in said:
            said += os.read(process.stderr.fileno(), 4096)
        url = re.search(rb"http://[^/]+", said)[0].decode()
        for _ in range(100):  # which writes more than the pipe holds
            assert httpx.get(f"{url}/version", timeout=60).status_code == 200
        children = psutil.Process(process.pid).children(recursive=True)
        (front_end,) = [c for c in children if "front_end_process" in " ".join(c.cmdline())]
        front_end.kill()
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
