"""Starts two processes that find each other on this machine, with emulated CPU devices."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_S = 180


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def two_processes(
    arguments: Sequence[Sequence[str]], *, devices: int = 1
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two Python processes, killed at the end if they have not ended.

    Args:
        arguments: of each; the place among the processes is in the environment of both.
        devices: emulated CPU devices of each.
    """
    port = free_port()
    started = []
    try:
        for i, line in enumerate(arguments):
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(i),
            }
            started.append(
                subprocess.Popen(
                    [sys.executable, *line],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        yield started
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def outputs(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of each, once both have ended."""
    texts = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    return [(p.returncode, *text) for p, text in zip(processes, texts, strict=True)]
