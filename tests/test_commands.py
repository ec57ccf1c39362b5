"""The commands as a user runs them: real processes, the bundled model, signals and mistakes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxinfer.__main__ import dispatch

ROOT = Path(__file__).resolve().parents[1]


def _environment() -> dict[str, str]:
    # As on a user's machine: the tests' own settings would emulate eight devices.
    ours = ("XLA_FLAGS", "JAX_PLATFORMS")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    path = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    return {**environment, "PYTHONPATH": path}


_started: list[subprocess.Popen[bytes]] = []


def _start(*arguments: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
    )
    _started.append(process)
    return process


@pytest.fixture(autouse=True)
def _nothing_goes_on() -> Iterator[None]:
    """Kill what a failed test leaves running."""
    yield
    while _started:
        process = _started.pop()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.slow
def test_without_a_model_the_bundled_one_writes_text():
    process = _start("jaxinfer", "generate", "-p", "Once upon a time", "-m", "12", "--temp", "0")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert len(out.decode().split()) > 4
    statistics = err.decode().splitlines()[-1]
    for figure in ("prompt", "generation 12 tokens", "first token", "peak memory"):
        assert figure in statistics
    if "gpu" not in err.decode():
        assert err.decode().count("No GPU found: running on the CPU") == 1


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_the_text_leaves_quietly():
    process = _start("jaxinfer.generate", "-p", "Once", "-m", "4000", "--ignore-eos", "-q")
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


@pytest.mark.slow
def test_ctrl_c_while_the_model_starts_leaves_quietly():
    process = _start("jaxinfer.generate", "-p", "Once", "--compile-ahead")
    assert process.stderr is not None
    first = process.stderr.readline()  # the devices; weights and compiling come next
    assert b"Devices" in first
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


@pytest.mark.slow
def test_ctrl_c_in_a_chat_stops_the_answer_and_the_chat_goes_on():
    arguments = ["-q", "-m", "3000", "--ignore-eos", "--max-model-len", "4096"]
    process = _start("jaxinfer.chat", *arguments, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Tell me a story\n")
    process.stdin.flush()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest = process.stdout.readline()  # ends only when the answer does
    out, err = process.communicate(b"/set max_tokens 3\nAnd now?\n/exit\n", timeout=60)
    assert len(rest) < 12_000
    assert len(out.splitlines()) >= 1
    assert process.returncode == 0
    assert b"max_tokens 3" in err
    assert b"Traceback" not in err


@pytest.mark.slow
def test_ctrl_c_twice_while_a_chat_compiles_leaves_it_usable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # so that everything must be compiled
    process = _start("jaxinfer.chat", "-m", "3", "--temp", "0", stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b"Tell me a story\n")
    process.stdin.flush()
    _read_until(process, b"compiling")
    process.send_signal(signal.SIGINT)
    assert b"your message is forgotten" in _read_until(process, b"(stopped")
    # One that comes just before the prompt begins to read is seen when the read ends.
    with _sending(process, signal.SIGINT):
        _read_until(process, b"Ctrl-D or /exit leaves")
    out, err = process.communicate(b"Hello\n", timeout=120)
    assert process.returncode == 0
    assert len(out.split(b"\n", 1)[1].strip()) > 0
    assert b"prompt 9 tokens" in err, "the forgotten message is no part of the prompt"
    assert b"Traceback" not in err


def test_ctrl_c_while_an_answer_compiles_says_what_happens_and_a_second_one_leaves():
    process = _start("tests.slow_compile", "generate", "Once", "-m", "3")
    _read_until(process, b"compiling")
    process.send_signal(signal.SIGINT)
    # The second comes from the process itself.
    _read_until(process, b"stopping after the current step; Ctrl-C again stops at once")
    _, err = process.communicate(timeout=60)  # a fifth of what it would wait for
    assert process.returncode == 130
    assert b"Traceback" not in err


@contextlib.contextmanager
def _sending(process: subprocess.Popen[bytes], number: signal.Signals) -> Iterator[None]:
    """Send a signal, and again every other second while the block lasts."""
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            process.send_signal(number)
            done.wait(2)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        done.set()
        sender.join()


def _read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Lines of stderr up to the one with `text`, which is returned."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"{text!r} did not come")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "no such directory"),
        ({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}, "Qwen3ForCausalLM"),
        ("{", "config.json"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_what_is_no_model_is_one_line_that_names_it(tmp_path, capsys, config, message, command):
    directory = tmp_path / "model"
    if config is not None:
        directory.mkdir()
        text = config if isinstance(config, str) else json.dumps(config)
        (directory / "config.json").write_text(text)
    prompt = ["-p", "x"] if command == "generate" else []
    assert dispatch([command, "--model", str(directory), *prompt, "-q"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"jaxinfer {command}: error: ")
    assert str(directory) in output.err
    assert message in output.err
    assert output.err.count("\n") == 1


def test_a_cache_too_small_for_the_model_length_says_what_would_fit(capsys):
    flags = ["--num-kv-blocks", "3", "--max-model-len", "4096"]
    assert dispatch(["generate", "-p", "x", "-q", *flags]) == 1
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "--max-model-len" in output.err
    assert "max_model_len" not in output.err


def test_a_prompt_that_is_too_long_is_one_line_with_both_numbers(capsys):
    command = ["generate", "-p", "word " * 100, "-q", "--max-model-len", "32"]
    assert dispatch(command) == 1
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "32" in output.err


def test_an_impossible_backend_is_one_line_with_the_possible_ones(capsys):
    assert dispatch(["generate", "-p", "x", "-q", "--attention-backend", "mosaic"]) == 1
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "supported here" in output.err
