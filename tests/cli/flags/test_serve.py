"""What the command line of `jaxinfer serve` comes to, and what it refuses."""

import socket

import pytest

from jaxinfer import serve
from jaxinfer.cli.flags import serve as serve_flags
from jaxinfer.cli.flags.config_file import with_config_file
from jaxinfer.cli.flags.serve import service_settings


def parsed(*argv):
    """The arguments of a command line."""
    parser = serve.build_parser()
    return parser.parse_args(with_config_file(argv, parser))


@pytest.fixture
def plans(monkeypatch):
    """The plans that commands would have started."""
    made = []

    class Supervisor:
        def __init__(self, plan):
            made.append(plan)

        async def run(self):
            return 0

    monkeypatch.setattr("jaxinfer.cli.service.supervisor.Supervisor", Supervisor)
    return made


def test_vllms_names_reach_the_engine_the_edge_and_the_limits(plans):
    line = (
        "some/model --port 0 --served-model-name a b --api-key k1 --api-key k2 --enable-admin "
        "--profiler-dir /traces "
        "--api-server-count 3 --shutdown-timeout 2 --max-waiting-requests 5 --request-timeout 7 "
        "--max-undelivered-tokens 9 --dtype bfloat16 --tensor-parallel-size 2 --max-num-seqs 12 "
        "--gpu-memory-utilization 0.5 --block-size 32 --max-model-len 512 "
        "--max-num-batched-tokens 64 --no-enable-prefix-caching --scheduling-policy fair "
        "--no-enable-auto-tool-choice --tool-call-parser qwen3_coder --reasoning-parser none "
        "--timeout-head 1 --timeout-body 2.5 --timeout-keep-alive 3 --allowed-hosts a.b,c "
        "--h11-max-incomplete-event-size 4096 --h11-max-header-count 20 "
        "--forwarded-allow-ips 10.0.0.7,192.168.0.0/16"
    )
    assert serve.main(line.split()) == 0
    (plan,) = plans
    assert plan.engine["engine"] == {
        "online": True,
        "show_progress": True,
        "model": "some/model",
        "dtype": "bfloat16",
        "tensor_parallel_size": 2,
        "max_num_seqs": 12,
        "gpu_memory_utilization": 0.5,
        "block_size": 32,
        "max_model_len": 512,
        "max_num_batched_tokens": 64,
        "enable_prefix_caching": False,
        "scheduling_policy": "fair",
    }
    assert plan.engine["limits"] == {
        "max_waiting_requests": 5,
        "request_timeout": 7.0,
        "max_undelivered_tokens": 9,
    }
    assert plan.front_end["http"] == {
        "served_model_names": ["a", "b"],
        "api_keys": ["k1", "k2"],
        "allowed_hosts": ["a.b", "c"],
        "body_seconds": 2.5,
        "enable_admin": True,
        "enable_auto_tool_choice": False,
        "tool_call_parser": "qwen3_coder",
        "reasoning_parser": "none",
        "profile_directory": "/traces",
    }
    assert plan.front_end["connections"] == {
        "head_seconds": 1.0,
        "idle_seconds": 3.0,
        "stalled_seconds": 2.5,
        "max_head_bytes": 4096,
        "max_headers": 20,
        "trusted_proxies": ["10.0.0.7", "192.168.0.0/16"],
    }
    assert (plan.num_front_ends, plan.shutdown_timeout) == (3, 2.0)
    assert plan.engine["socket"] == plan.front_end["socket"]


def test_with_nothing_said_it_is_the_bundled_model_on_this_machine_alone(plans):
    assert serve.main(["--port", "0"]) == 0
    (plan,) = plans
    assert "model" not in plan.engine["engine"]
    assert plan.front_end["http"]["served_model_names"] == ["jaxinfer"]
    assert plan.announcement.startswith("http://127.0.0.1:")
    assert plan.announcement.endswith("with model jaxinfer")
    assert plan.front_end["http"].keys() == {"served_model_names", "allowed_hosts"}
    assert plan.front_end["connections"] == plan.engine["limits"] == {}
    assert parsed().port == 8000


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("", []),
        ("--host localhost", []),
        ("--host 127.0.0.2", []),
        ("--allowed-hosts a.example", ["a.example"]),
        ("--api-key k", ["*"]),
        ("--host 0.0.0.0", ["*"]),
        ("--host 0.0.0.0 --allowed-hosts a.example", ["a.example"]),
        ("--api-key k --allowed-hosts a.example", ["a.example"]),
    ],
)
def test_without_a_key_a_server_of_this_machine_answers_for_its_names_alone(plans, line, hosts):
    assert serve.main(["--port", "0", *line.split()]) == 0
    assert plans[0].front_end["http"]["allowed_hosts"] == hosts


@pytest.mark.parametrize("host", ["", " ", "*", "<broadcast>", "a b", "http://localhost"])
def test_a_host_that_is_none_is_one_line(capsys, host):
    with pytest.raises(SystemExit):
        serve.main(["--port", "0", "--host", host])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"argument --host: expected an address or a name, got {host!r}" in error


@pytest.mark.parametrize("host", ["a..b", "a" * 70, "256.0.0.1", "8.8.8.8"])
def test_a_host_that_cannot_be_had_is_one_line(capsys, host):
    assert serve.main(["--port", "0", "--host", host]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"can't listen on port 0 of {host}: " in error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--timeout-head 0", "--timeout-head must be from 0.001 to 1e+06, got 0.0"),
        ("--timeout-body nan", "--timeout-body must be above 0, got nan"),
        ("--timeout-body inf", "--timeout-body must be from 0.001"),
        ("--request-timeout -1", "--request-timeout must be from 0"),
        ("--max-undelivered-tokens 0", "--max-undelivered-tokens must be from 1"),
        ("--allowed-hosts a,,b", "expected names with commas between"),
        ("--forwarded-allow-ips proxy", "'proxy' is neither an address"),
        ("--h11-max-header-count 1", "--h11-max-header-count must be from 16"),
    ],
)
def test_a_limit_of_connections_that_is_none_is_one_line(capsys, plans, line, message):
    try:
        status = serve.main(["--port", "0", *line.split()])
    except SystemExit as leaving:
        status = leaving.code
    assert status in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not plans


def test_the_page_can_be_left_out():
    assert service_settings(parsed("--no-page"), "127.0.0.1")["http"]["page"] is False


def test_no_online_is_the_users_choice(plans):
    assert serve.main(["--port", "0", "--no-online"]) == 0
    assert plans[0].engine["engine"]["online"] is False


@pytest.mark.parametrize("cores", [1, 4, 15, 16, 256])
def test_front_ends_follow_the_cores(cores, monkeypatch):
    monkeypatch.setattr(serve_flags, "usable_cores", lambda: cores)
    assert serve_flags.default_front_ends() == {1: 1, 4: 1, 15: 3, 16: 4, 256: 8}[cores]


def test_a_config_file_is_flags_and_the_command_line_wins(tmp_path):
    file = tmp_path / "service.yaml"
    file.write_text(
        "model: some/model\nport: 1234\nmax_num_seqs: 8\nenable-prefix-caching: false\n"
        "served-model-name: [a, b]\napi-key: [x, y]\nenable-admin: true\nonline: false\n"
        "hf-overrides: {rope_theta: 5}\n"
    )
    arguments = parsed("--config", str(file), "--max-num-seqs", "9")
    assert (arguments.model, arguments.port, arguments.max_num_seqs) == ("some/model", 1234, 9)
    assert arguments.enable_prefix_caching is False
    assert arguments.online is False
    assert arguments.hf_overrides == {"rope_theta": 5}
    settings = service_settings(arguments, "127.0.0.1")["http"]
    assert settings["served_model_names"] == ["a", "b"]
    assert settings["api_keys"] == ["x", "y"]


def test_prefix_caching_can_be_asked_for_and_turned_off(plans):
    for flag, value in (("--enable-prefix-caching", True), ("--no-enable-prefix-caching", False)):
        assert serve.main(["--port", "0", flag]) == 0
        assert plans[-1].engine["engine"]["enable_prefix_caching"] is value


def test_vllms_short_flags_and_dtypes_are_taken():
    line = "-tp 2 -dp 3 -asc 4 --dtype half --enable-tokenizer-info-endpoint"
    arguments = parsed(*line.split())
    assert (arguments.tensor_parallel_size, arguments.data_parallel_size) == (2, 3)
    assert (arguments.api_server_count, arguments.dtype) == (4, "half")
    assert arguments.enable_tokenizer_info


@pytest.mark.parametrize(
    "argv",
    [
        ["--served-model-name", "x", "DIR"],
        ["--served-model-name", "DIR"],
        ["--served-model-name", "x", "y", "Qwen/Qwen3-8B"],
    ],
)
def test_a_model_that_was_read_as_a_name_is_one_line(argv, tmp_path, capsys, plans):
    argv = [str(tmp_path) if each == "DIR" else each for each in argv]
    assert serve.main(["--port", "0", *argv]) == 1
    error = capsys.readouterr().err
    assert f"has taken {argv[-1]} as a name, and there is no MODEL" in error
    assert error.count("\n") == 1
    assert not plans


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--served-model-name", "x", "y"], ["x", "y"]),
        (["--served-model-name", "org/x"], ["org/x"]),
        (["m", "--served-model-name", "x", "org/y"], ["x", "org/y"]),
        (["--served-model-name", "x", "org/y", "--model", "m"], ["x", "org/y"]),
    ],
)
def test_names_that_are_names_are_kept(argv, names, plans):
    assert serve.main(["--port", "0", *argv]) == 0
    assert plans[0].front_end["http"]["served_model_names"] == names


@pytest.mark.parametrize(
    ("names", "said"),
    [("sql=/a sql=/b", "sql is that of another adapter"), ("m=/a", "m is that of the model")],
)
def test_a_name_of_an_adapter_is_its_own(names, said):
    line = f"--served-model-name m --model x --enable-lora --lora-modules {names}"
    with pytest.raises(ValueError, match=said):
        service_settings(parsed(*line.split()), "127.0.0.1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--max-loras 4", "--max-loras needs --enable-lora; add that, or leave --max-loras out"),
        ("--max-lora-rank 16 --no-enable-lora", "--max-lora-rank needs --enable-lora"),
        ("--max-cpu-loras 9", "--max-cpu-loras needs --enable-lora"),
        (
            "--enable-expert-parallel --enable-eplb",
            "--enable-eplb needs --enable-admin, whose route",
        ),
    ],
)
def test_flags_that_would_do_nothing_are_refused(line, said, capsys):
    with pytest.raises(SystemExit):
        serve.read_arguments(line.split())
    assert said in capsys.readouterr().err


def test_an_administrators_server_may_move_experts(plans):
    line = "--port 0 --enable-admin --api-key k --enable-expert-parallel --enable-eplb"
    assert serve.main(line.split()) == 0
    assert plans[0].engine["engine"]["enable_eplb"]


def test_a_unix_socket_takes_the_place_of_the_port(plans, tmp_path):
    path = str(tmp_path / "http")
    assert serve.main(["--uds", path]) == 0
    (plan,) = plans
    assert plan.listener.family == socket.AF_UNIX
    assert plan.announcement == f"/v1 at {path} with model jaxinfer"


def test_middleware_that_can_not_be_loaded_is_one_line(capsys, plans):
    assert serve.main(["--port", "0", "--middleware", "no.such.Thing"]) == 1
    assert "--middleware no.such.Thing: No module named 'no'" in capsys.readouterr().err
    assert serve.main(["--port", "0", "--middleware", "asyncio.sleep"]) == 0
    assert plans[0].front_end["middleware"] == ["asyncio.sleep"]


def test_admin_routes_need_a_key(capsys):
    assert serve.main(["--port", "0", "--enable-admin"]) == 1
    assert "--enable-admin needs --api-key" in capsys.readouterr().err
    assert serve.main(["--port", "0", "--profiler-dir", "traces"]) == 1
    assert "--profiler-dir needs --enable-admin" in capsys.readouterr().err


def test_contradictions_of_the_engine_are_found_before_a_process_is_started(capsys, plans):
    assert serve.main(["--port", "0", "--block-size", "9"]) == 1
    assert "--block-size must be a power of two" in capsys.readouterr().err
    assert not plans


def test_several_hosts_are_refused(capsys):
    with pytest.raises(SystemExit):
        serve.main(["--num-processes", "2"])
    assert "several hosts" in capsys.readouterr().err


def test_monitoring_flags_reach_the_front_ends(plans):
    assert serve.main(["--port", "0", "--access-log", "--metrics-prefix", "vllm:"]) == 0
    monitoring = plans[0].front_end["monitoring"]
    assert (monitoring["prefix"], monitoring["access_log"]) == ("vllm:", True)


def test_a_prefix_that_prometheus_refuses_is_one_line(capsys):
    with pytest.raises(SystemExit):
        serve.main(["--metrics-prefix", "2x"])
    assert "no digit first, got '2x'" in capsys.readouterr().err
