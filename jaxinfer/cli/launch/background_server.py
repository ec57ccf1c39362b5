"""A server for as long as a program runs: the one that answers already, or one of its own."""

import contextlib
import http.client
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from jaxinfer.cli.client.server import Target

_POLL_S = 0.2
_PROBE_S = 10.0
_END_S = 35.0  # more than --shutdown-timeout's default
_LAST_BYTES = 4096


@contextlib.contextmanager
def running_server(target: Target, arguments: Sequence[str], *, quiet: bool) -> Iterator[None]:
    """Have a server at an address: if none answers there, one that ends with the block.

    Raises:
        ValueError: something else answers there, or the server does not start; says why.
    """
    status = health(target)
    if status not in (None, 200, 503):
        raise ValueError(
            f"{target.url}/health answers HTTP {status}, so that is no server of models; "
            "choose another --port"
        )
    with contextlib.ExitStack() as stack:
        process = log = None
        if status is None:
            log = stack.enter_context(tempfile.NamedTemporaryFile(prefix="jaxinfer-serve-"))
            if not quiet:
                print(
                    f"starting a server at {target.url}; it writes to {log.name}", file=sys.stderr
                )
            process = _start(arguments, log)
            stack.callback(_end, process)
        _wait(target, process, log)
        yield


def health(target: Target) -> int | None:
    """The status of `/health`; None if nothing answers."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=_PROBE_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _start(arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jaxinfer.serve", *arguments]
    # Ctrl-C in the terminal is the program's, so the server is in a session of its own.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )


def _wait(target: Target, process: subprocess.Popen[bytes] | None, log: IO[bytes] | None) -> None:
    """Return when the server takes requests; ValueError if it ends before."""
    while (status := health(target)) != 200:
        ended = process is None and status is None
        if ended or (process is not None and process.poll() is not None):
            raise ValueError(f"the server at {target.url} has ended: {_last_line(log)}")
        time.sleep(_POLL_S)


def _last_line(log: IO[bytes] | None) -> str:
    if log is None:
        return "it does not answer any more"
    with open(log.name, "rb") as written:
        text = written.read()[-_LAST_BYTES:].decode(errors="replace")
    return (text.strip().splitlines() or ["it wrote nothing"])[-1]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
