"""Processes of a service that stand still: each is named, and what can go on goes on."""

import asyncio
import contextlib
import re
import socket
import time

import psutil
import pytest

from jaxinfer.cli.service import supervisor
from jaxinfer.cli.service.supervisor import ServicePlan, Supervisor

IDLE = "tests.cli.service.idle_child"
SILENCE = 1.5  # a child reports every second


@contextlib.asynccontextmanager
async def supervised(directory):
    """The processes of a service with two front ends, without a real engine."""
    settings = {"socket": str(directory / "socket" / "engine")}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plan = ServicePlan(
            engine=settings,
            front_end=settings,
            num_front_ends=2,
            listener=listener,
            shutdown_timeout=0,
            announcement="ready",
            longest_silence=SILENCE,
        )
        service = Supervisor(plan)
        running = asyncio.create_task(service.run())
        try:
            await until(lambda: service._is_ready)
            processes = [service._engine, *service._front_ends]
            yield service, [psutil.Process(each._process.pid) for each in processes]
        finally:
            service._signals.put_nowait(None)
            await running


async def until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


@pytest.fixture
def idle(monkeypatch):
    monkeypatch.setattr(supervisor, "_ENGINE", IDLE)
    monkeypatch.setattr(supervisor, "_FRONT_END", IDLE)


@pytest.mark.usefixtures("idle")
def test_what_stands_still_is_named_and_what_can_go_on_goes_on(tmp_path, capsys):
    said = ""

    def has_said(pattern):
        nonlocal said
        said += capsys.readouterr().err
        return re.search(pattern, said)

    async def main():
        async with supervised(tmp_path) as (service, (engine, first, second)):
            first.suspend()
            await until(lambda: has_said(r"front end 0's process stands still for 1.5 s\n"))
            await until(lambda: has_said("front end 0's process was killed by SIGKILL and is repl"))
            await until(lambda: service._front_ends[0].silence > 0)
            assert not first.is_running()
            assert second.is_running()
            engine.suspend()
            await until(lambda: has_said("the engine's process stands still for 1.5 s"))
            assert engine.is_running()
            engine.resume()
            await until(lambda: has_said("the engine's process goes on"))
            assert service._front_ends[1]._process.pid == second.pid
            assert has_said("front end 1") is None

    asyncio.run(main())
