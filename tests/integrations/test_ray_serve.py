"""Two replicas by Ray Serve on this machine: streams, a replica that dies, an end that waits.

Ray is in the extra `ray`; `.ci/clients` makes an environment that has it and runs these.
"""

import concurrent.futures
import dataclasses
import json
import re
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from jaxinfer.server.openai.settings import ServerSettings

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's
]
ray: Any = pytest.importorskip("ray", reason="needs Ray, of '.[ray]'")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's, while it is imported
    from ray import serve

    from jaxinfer.integrations.ray_serve import app, build

SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "num_kv_blocks": 257,
    "compile_ahead": False,
}
PORT = 18_431
METRICS_PORT = 18_432
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # Ray writes a token there
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("XLA_FLAGS", "")
        ray.init(
            include_dashboard=False,
            num_cpus=2,
            num_gpus=0,
            object_store_memory=100 << 20,
            _node_ip_address="127.0.0.1",
            _metrics_export_port=METRICS_PORT,
            log_to_driver=False,
        )
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        yield
        processes = psutil.Process().children(recursive=True)
        serve.shutdown()
        ray.shutdown()
        _, left = psutil.wait_procs(processes, timeout=30)
        assert not left


def _run(**options: Any) -> None:
    small = {"num_gpus": 0, "ray_actor_options": {"num_cpus": 0.5}, **SMALL, **options}
    serve.run(app(**small), name="served", route_prefix="/")


@pytest.fixture(scope="module")
def two_replicas(cluster) -> None:
    _run(min_replicas=2)


@pytest.fixture(scope="module")
def one_replica(cluster) -> None:
    _run(min_replicas=1)


def _stream(num_tokens: int) -> str:
    """How a stream ended: "done", or the error."""
    body = {"model": "jaxinfer", "prompt": "Once upon a time", "max_tokens": num_tokens}
    body |= {"stream": True, "ignore_eos": True, "temperature": 0}
    last = ""
    try:
        with httpx.stream("POST", f"{URL}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                last = line or last
    except httpx.RemoteProtocolError:
        return "cut"
    return "done" if last == "data: [DONE]" else f"status {answer.status_code}"


def _replicas() -> list[Any]:
    return [
        ray.get_actor(**each)
        for each in ray.util.list_named_actors(all_namespaces=True)
        if each["name"].startswith("SERVE_REPLICA::served#")
    ]


def _running() -> int:
    states = serve.status().applications["served"].deployments["jaxinfer"].replica_states
    return states.get("RUNNING", 0)


def _metric(name: str) -> float:
    """A series of the replica that Ray chooses."""
    text = httpx.get(f"{URL}/metrics").text
    (value,) = re.findall(rf'^jaxinfer:{name}{{model_name="jaxinfer"}} (\S+)$', text, re.MULTILINE)
    return float(value)


def _eventually(condition) -> bool:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_streams_come_from_both_and_end_when_one_is_killed(two_replicas):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(_stream, [20] * 8)) == {"done"}
        first, _ = _replicas()
        cut = [pool.submit(_stream, 400) for _ in range(8)]
        time.sleep(0.5)
        ray.kill(first)
        ends = [future.result(timeout=60) for future in cut]
        assert "done" in ends
        assert set(ends) - {"done"}, "both had some of the streams"
        assert "done" in pool.map(_stream, [20] * 4)
    assert _eventually(lambda: _running() == 2)
    assert httpx.get(f"{URL}/health").status_code == 200
    assert _stream(20) == "done"


def test_metrics_have_our_names(two_replicas):
    assert _metric("num_requests_running") == 0


def test_ray_exports_the_metrics_of_both_replicas(two_replicas):
    series = re.compile(r'^ray_jaxinfer_num_requests_running\{.*replica="(\w+)".*\} ', re.MULTILINE)

    def found():
        text = httpx.get(f"http://127.0.0.1:{METRICS_PORT}/metrics").text
        return len(set(series.findall(text))) >= 2  # that of one that ended may still be there

    assert _eventually(found)


def test_a_client_that_leaves_ends_its_request(one_replica):
    body = {"model": "jaxinfer", "prompt": "Once", "max_tokens": 480, "ignore_eos": True}
    with httpx.stream("POST", f"{URL}/v1/completions", json=body | {"stream": True}) as answer:
        next(answer.iter_lines())
    assert _eventually(lambda: _metric("num_requests_running") == 0)
    assert _metric("generation_tokens_total") < 480


def test_running_streams_end_before_their_replica_does(one_replica):
    _stream(5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream = pool.submit(_stream, 300)
        time.sleep(0.3)
        assert not stream.done()
        serve.delete("served")
        assert stream.result(timeout=60) == "done"


def test_prompts_are_computed_apart_in_a_replica_of_two_devices(cluster):
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    options = {"num_cpus": 0.5, "runtime_env": {"env_vars": devices}}
    apart = {"data_parallel_size": 2, "prefill_replicas": 1, "kv_offloading_size": 0.05}
    _run(min_replicas=1, **apart, ray_actor_options=options)
    body = {"model": "jaxinfer", "prompt": "Once upon a time " * 30, "max_tokens": 8}
    body |= {"ignore_eos": True, "temperature": 0}
    first, again = (httpx.post(f"{URL}/v1/completions", json=body, timeout=60) for _ in range(2))
    assert first.json()["choices"] == again.json()["choices"]
    assert first.json()["usage"]["completion_tokens"] == 8
    assert _metric("handed_over_prompts_total") == 1, "the second time they are cached"
    assert _metric("handed_over_tokens_total") > 64
    assert _metric("recomputed_prompts_total") == 0
    serve.delete("served")


def test_an_engine_that_fails_to_start_is_told(cluster):
    with pytest.raises(RuntimeError):
        _run(model="/no/such/directory", min_replicas=1)
    serve.delete("served")


def _deployment(application):
    return application._bound_deployment


def test_a_replica_has_a_gpu_for_each_device():
    found = _deployment(app(tensor_parallel_size=2, data_parallel_size=2))
    assert found.ray_actor_options["num_gpus"] == 4
    variables = found.ray_actor_options["runtime_env"]["env_vars"]
    assert variables == {"XLA_CLIENT_MEM_FRACTION": "0.92"}
    found = _deployment(
        app(num_gpus=0, ray_actor_options={"runtime_env": {"env_vars": {"A": "1"}}})
    )
    assert found.ray_actor_options["runtime_env"]["env_vars"] == {"JAX_PLATFORMS": "cpu", "A": "1"}


def test_replicas_follow_the_load_by_ongoing_requests():
    found = _deployment(app(min_replicas=1, max_replicas=3, max_num_seqs=64))
    scale = found._deployment_config.autoscaling_config
    assert (scale.min_replicas, scale.max_replicas) == (1, 3)
    assert scale.target_ongoing_requests == 64
    assert found.max_ongoing_requests == 80
    found = _deployment(app(min_replicas=2, shutdown_timeout=7))
    assert found._deployment_config.autoscaling_config is None
    assert found.num_replicas == 2
    assert found._deployment_config.graceful_shutdown_timeout_s == 7


def test_a_file_of_rays_has_the_same_arguments(monkeypatch):
    monkeypatch.setenv("JAXINFER_API_KEY", "secret")
    args = {"model": "org/m", "min_replicas": 2, "settings": {"allowed_hosts": ["a"]}}
    found = _deployment(build(json.loads(json.dumps(args))))
    engine, settings = found.init_args
    assert engine["model"] == "org/m"
    expected = ServerSettings(
        served_model_names=("org/m",), allowed_hosts=("a",), api_keys=("secret",)
    )
    assert dataclasses.asdict(settings) == dataclasses.asdict(expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seq": 4}, "app.* unknown keyword argument 'max_num_seq'"),
        ({"min_replicas": 0}, "min_replicas must be from 1"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas must be from 3"),
        ({"target_ongoing_requests": 0}, "target_ongoing_requests must be from 1"),
        ({"num_gpus": -1}, "num_gpus must be from 0"),
        ({"shutdown_timeout": -1}, "shutdown_timeout must be from 0"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_deployed(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        app(**options)


def test_the_pages_program_is_understood():
    page = (Path(__file__).parents[2] / "docs" / "ray.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    called = []
    program = program.replace("serve.run(", "called.append(")
    exec(program, {"called": called})  # our own page
    assert _deployment(called[0]).name == "jaxinfer"
