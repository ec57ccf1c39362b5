"""A front end of `jaxinfer serve`: HTTP, text and tokenizer; it loads no JAX."""

import asyncio
import signal
import socket
import sys
from typing import Any, TextIO

from jaxinfer.cli.process import OK, end_process, run_command
from jaxinfer.cli.service.child import begin_as_child, freeze_heap, report_while_running
from jaxinfer.errors import EngineDeadError

_CONNECT_EVERY_S = 0.02


def main() -> None:
    """Serve until the parent ends this process."""
    settings, reports = begin_as_child(may_hang=False)
    end_process(run_command("serve", lambda: _run(settings, reports)))


def _run(settings: dict[str, Any], reports: TextIO) -> int:
    # Loaded while the engine starts.
    from jaxinfer.cli.service.http_app import make_app

    return asyncio.run(_serve(settings, reports, make_app), loop_factory=_loop_factory())


async def _serve(settings: dict[str, Any], reports: TextIO, make_app: Any) -> int:
    from jaxinfer.server.openai.connections.limits import ConnectionLimits
    from jaxinfer.server.openai.connections.server import Server, server_config
    from jaxinfer.server.service.remote_llm import RemoteLLM

    ending = asyncio.Semaphore(0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.release)
    llm = await _connect(RemoteLLM, settings["socket"], ending)
    if llm is None:
        return OK
    app = make_app(llm, settings["http"], settings["monitoring"], settings.get("middleware", ()))
    limits = ConnectionLimits(**settings["connections"])
    server = Server(server_config(app, limits))
    with socket.socket(fileno=settings["listener"]) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        freeze_heap()
        reporting = asyncio.create_task(report_while_running(reports))
        await ending.acquire()
        await _drain(llm, settings["shutdown_timeout"], ending)
        server.should_exit = True
        await serving
        reporting.cancel()
    await llm.shutdown()
    return OK


async def _drain(llm: Any, seconds: float, ending: asyncio.Semaphore) -> None:
    """Let requests end for `seconds`, or until a second signal; then abort them."""
    llm.start_draining()
    tasks = [asyncio.create_task(llm.drained()), asyncio.create_task(ending.acquire())]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    llm.abort_all()


async def _connect(kind: Any, path: str, ending: asyncio.Semaphore) -> Any:
    """Connect as soon as the engine listens; None if this process is to end before."""
    while ending.locked():
        try:
            return await kind.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, EngineDeadError):
            await asyncio.sleep(_CONNECT_EVERY_S)
    return None


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
