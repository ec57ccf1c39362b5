"""However a command ends, its user sees one line at most and a telling exit status."""

import errno
import os
import subprocess
import sys

import pytest

from jaxinfer.cli.process import run_command
from jaxinfer.errors import CapacityError, ModelLoadError


def _raises(error: BaseException):
    def body() -> int:
        raise error

    return body


def _run(program: str) -> "subprocess.CompletedProcess[str]":
    """A process of its own that runs a program to its end."""
    return subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=50
    )


def test_a_finished_body_gives_its_own_status():
    assert run_command("generate", lambda: 7) == 7


@pytest.mark.parametrize(
    "error",
    [
        ValueError("max_tokens must be\nat least 1"),
        ModelLoadError("/m/config.json: no such file"),
        CapacityError("the KV cache holds 3 tokens"),
        FileNotFoundError(2, "No such file", "prompts.txt"),
        ModuleNotFoundError("No module named 'triton'", name="triton"),
    ],
)
def test_a_users_error_is_one_line_and_status_1(error, capsys):
    assert run_command("generate", _raises(error)) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("jaxinfer generate: error: ")
    assert output.err.count("\n") == 1


def test_an_error_about_a_file_is_without_its_number(capsys):
    run_command("generate", _raises(FileNotFoundError(2, "No such file", "prompts.txt")))
    assert capsys.readouterr().err == "jaxinfer generate: error: prompts.txt: No such file\n"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3 bytes."),
        MemoryError(),
    ],
)
def test_too_little_memory_says_which_flags_to_lower(error, capsys):
    assert run_command("chat", _raises(error)) == 1
    message = capsys.readouterr().err
    assert "out of" in message
    assert "--max-model-len" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("lost a block"),
        TypeError("unhashable"),
        ModuleNotFoundError("No module named 'jaxinfer.lost'", name="jaxinfer.lost"),
    ],
)
def test_a_bug_keeps_its_traceback(error):
    with pytest.raises(type(error)):
        run_command("generate", _raises(error))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/out/model.safetensors"),
        ValueError("RESOURCE_EXHAUSTED: Error writing /out: No space left on device"),
    ],
)
def test_a_full_disk_is_not_taken_for_memory(error, capsys):
    assert run_command("convert", _raises(error)) == 1
    message = capsys.readouterr().err
    assert "error: no space left on the disk" in message
    assert "/out" in message
    assert "memory" not in message


@pytest.mark.parametrize(
    ("redirection", "status", "out", "error"),
    [
        (">&-", 1, "", "jaxinfer generate: error: standard output is closed"),
        (">/dev/full", 1, "", "jaxinfer generate: error: no space left on the disk"),
        ("2>&-", 0, "text\n", ""),
    ],
)
def test_closed_and_full_outputs_are_one_line_at_most(redirection, status, out, error):
    program = (
        "import sys\n"
        "from jaxinfer.cli.process import run_command, end_process\n"
        "def body():\n"
        "    print('text')\n"
        "    if sys.stderr.name != '<stderr>': print('lost', file=sys.stderr)\n"
        "    return 0\n"
        "end_process(run_command('generate', body))\n"
    )
    done = subprocess.run(
        f'"{sys.executable}" -c "$PROGRAM" {redirection}',
        shell=True,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PROGRAM": program},
        timeout=50,
    )
    assert (done.returncode, done.stdout) == (status, out)
    assert done.stderr.startswith(error)
    assert done.stderr.count("\n") == bool(error)


def test_ctrl_c_is_status_130_without_a_word(capsys):
    assert run_command("generate", _raises(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_goes_away_ends_the_command_quietly():
    program = (
        "from jaxinfer.cli.process import run_command, end_process\n"
        "def body():\n"
        "    while True: print('line ' * 50, flush=True)\n"
        "end_process(run_command('generate', body))\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.wait(timeout=50) == 141
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_an_interrupted_process_does_not_wait_for_its_threads():
    program = (
        "import threading, time\n"
        "from jaxinfer.cli.process import run_command, end_process\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "def body(): raise KeyboardInterrupt\n"
        "end_process(run_command('generate', body))\n"
    )
    done = _run(program)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "lose",
    [
        "class Dies:\n    def __del__(self): interrupt()\nDies()",
        "gc.callbacks.append(lambda phase, _: phase == 'stop' or interrupt())\ngc.collect()",
    ],
    ids=["finalizer", "garbage collection"],
)
def test_ctrl_c_where_python_drops_exceptions_still_ends_the_command(lose):
    program = (
        "import gc, signal, time\n"
        "from jaxinfer.cli.process import run_command, end_process\n"
        "def interrupt():\n"
        "    gc.callbacks.clear()\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "def body():\n"
        f"    exec({lose!r}, globals())\n"
        "    time.sleep(60)\n"
        "end_process(run_command('generate', body))\n"
    )
    done = _run(program)
    assert (done.returncode, done.stderr) == (130, "")


def test_other_exceptions_of_finalizers_are_shown_as_ever():
    program = (
        "from jaxinfer.cli.process import run_command, end_process\n"
        "class Dies:\n    def __del__(self): raise ValueError('in a finalizer')\n"
        "def body():\n    Dies()\n    return 0\n"
        "end_process(run_command('generate', body))\n"
    )
    done = _run(program)
    assert done.returncode == 0
    assert "in a finalizer" in done.stderr


@pytest.mark.parametrize("redirection", ["<&-", "2>&-", "<&- 2>&-", ""])
def test_no_socket_takes_the_number_of_a_closed_standard_stream(redirection):
    body = (
        "import os, socket\n"
        "def body():\n"
        "    print(min(socket.socket().fileno(), 3), [os.fstat(i).st_mode > 0 for i in range(3)])\n"
        "    return 0\n"
        "from jaxinfer.cli.process import run_command\n"
        "run_command('serve', body)\n"
    )
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirection}', sys.executable, body]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "3 [True, True, True]\n"
