"""Processes of a service that stand still or end: each is named, and what can go on goes on."""

import asyncio
import contextlib
import re
import signal
import socket
import time

import psutil
import pytest

from jaxinfer.cli.service import supervisor
from jaxinfer.cli.service.supervisor import ServicePlan, Supervisor

IDLE = "tests.cli.service.idle_child"
SILENCE = 1.5  # a child reports every second


def plan_of(directory, listener):
    settings = {"socket": str(directory / "socket" / "engine")}
    return ServicePlan(
        engine=settings,
        front_end=settings,
        num_front_ends=2,
        listener=listener,
        shutdown_timeout=0,
        announcement="ready",
        longest_silence=SILENCE,
    )


@contextlib.asynccontextmanager
async def supervised(directory):
    """The processes of a service with two front ends, without a real engine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        service = Supervisor(plan_of(directory, listener))
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
            await until(lambda: has_said(r"front end 0's process has not responded for 1.5 s\n"))
            await until(lambda: has_said("front end 0's process was killed by SIGKILL and is repl"))
            await until(lambda: service._front_ends[0].silence > 0)
            assert not first.is_running()
            assert second.is_running()
            engine.suspend()
            await until(lambda: has_said("the engine's process has not responded for 1.5 s"))
            assert engine.is_running()
            engine.resume()
            await until(lambda: has_said("the engine's process goes on"))
            assert service._front_ends[1]._process.pid == second.pid
            assert has_said("front end 1") is None

    asyncio.run(main())


@pytest.mark.usefixtures("idle")
def test_a_front_end_that_ends_often_comes_back_with_pauses_and_ends_no_service(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(supervisor, "_PAUSES_S", (0.0, 0.01, 0.02))

    async def main():
        async with supervised(tmp_path) as (service, (engine, _, second)):
            for _ in range(6):
                before = service._front_ends[0]
                before.send(signal.SIGKILL)
                await until(lambda before=before: service._front_ends[0] is not before)
                await service._front_ends[0].ready()
            assert engine.is_running()
            assert second.is_running()

    asyncio.run(main())
    said = re.findall("front end 0's process was killed by SIGKILL (.*)", capsys.readouterr().err)
    slow = "and is replaced in 0.02 s"
    assert said == ["and is replaced", "and is replaced in 0.01 s", slow, slow, slow, slow]


@pytest.mark.usefixtures("idle")
def test_a_front_end_whose_process_can_not_be_started_is_tried_again(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "_PAUSES_S", (0.0, 0.01))
    start, failures = Supervisor._start_front_end, [OSError("no processes left")] * 3

    async def start_or_fail(self, index):
        if failures and self._is_ready:
            raise failures.pop()
        return await start(self, index)

    monkeypatch.setattr(Supervisor, "_start_front_end", start_or_fail)

    async def main():
        async with supervised(tmp_path) as (service, _):
            before = service._front_ends[0]
            before.send(signal.SIGKILL)
            await until(lambda: service._front_ends[0] is not before)

    asyncio.run(main())
    assert capsys.readouterr().err.count("could not start (no processes left)") == 3


def test_a_front_end_that_can_not_start_in_a_new_service_ends_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(supervisor, "_ENGINE", IDLE)
    monkeypatch.setattr(supervisor, "_FRONT_END", "tests.no_such_module")
    monkeypatch.setattr(supervisor, "_PAUSES_S", (0.0,))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert asyncio.run(Supervisor(plan_of(tmp_path, listener)).run()) == 1
    assert "ended with status 1, 4 times; the service ends" in capsys.readouterr().err


@pytest.mark.usefixtures("idle")
def test_a_front_end_that_is_being_started_ends_with_the_service(tmp_path, monkeypatch):
    start, starts = Supervisor._start_front_end, []

    async def begin_start(self, index):
        if not self._is_ready:
            return await start(self, index)
        starts.append(index)
        try:
            await asyncio.sleep(60)
        finally:  # as asyncio ends a process whose start is cancelled
            await asyncio.sleep(0.2)
            starts.append("ended")

    monkeypatch.setattr(Supervisor, "_start_front_end", begin_start)

    async def main():
        async with supervised(tmp_path) as (service, _):
            service._front_ends[0].send(signal.SIGKILL)
            await until(lambda: starts)
        assert starts == [0, "ended"]

    asyncio.run(main())


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("again_after", [0.0, 3600.0], ids=["much later", "soon"])
def test_an_engine_that_ends_is_started_anew_and_ends_the_service_when_it_ends_again(
    tmp_path, capsys, monkeypatch, again_after
):
    monkeypatch.setattr(supervisor, "_RESTARTS_EVERY_S", again_after)

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            service = Supervisor(plan_of(tmp_path, listener))
            running = asyncio.create_task(service.run())
            await until(lambda: service._is_ready)
            for _ in range(2):
                before = service._engine
                before.send(signal.SIGKILL)
                await until(lambda before=before: running.done() or service._engine != before)
                await service._engine.ready()
            if again_after:
                return await running
            service._signals.put_nowait(None)
            return await running

    status = asyncio.run(main())
    said = re.findall("the engine's process was killed by SIGKILL (.*)", capsys.readouterr().err)
    anew = "and is started anew; until it serves, requests get 503"
    assert said == [anew, "again; the service ends" if again_after else anew]
    assert status == bool(again_after)
