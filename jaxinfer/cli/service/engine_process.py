"""The engine's process of `jaxinfer serve`: an engine and its socket, no HTTP and no text."""

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from jaxinfer.cli.engine import speaking_of_flags
from jaxinfer.cli.process import FAILED, OK, end_process, print_error, run_command
from jaxinfer.cli.service.child import (
    begin_as_child,
    collect_less_often,
    freeze_heap,
    report_while_running,
)
from jaxinfer.config import EngineConfig

_LOOK_EVERY_S = 0.2


def main() -> None:
    """Serve until the parent ends this process, or the engine fails for good."""
    settings, reports = begin_as_child(may_hang=True)
    end_process(run_command("serve", lambda: _run(settings, reports)))


def _run(settings: dict[str, Any], reports: TextIO) -> int:
    from jaxinfer.cli.platform import start_platform
    from jaxinfer.server.service.limits import ServiceLimits
    from jaxinfer.serving.handle_start import start_handle

    start_platform()
    with speaking_of_flags():
        limits = ServiceLimits(**settings["limits"])
        _check_adapters(settings["adapters"], settings["engine"])
        handle = start_handle("jaxinfer serve", **settings["engine"])
    try:
        with speaking_of_flags():
            for name, directory in settings["adapters"]:
                handle.arguments.adapters.load(name, directory, None, replaces=False)
        return asyncio.run(_serve(handle, limits, settings["socket"], reports))
    finally:
        handle.close()


def _check_adapters(adapters: Sequence[tuple[str, str]], engine: Mapping[str, Any]) -> None:
    """Refuse directories that can't be loaded, before minutes go into an engine.

    Their headers are read once more when they are loaded, and their matrices then alone.
    """
    from jaxinfer.model.adapters.peft_files import read_peft
    from jaxinfer.model.adapters.shape import check_rank

    most = engine.get("max_lora_rank", EngineConfig.max_lora_rank)
    for name, directory in adapters:
        for target, matrices in read_peft(Path(directory).expanduser()).items():
            check_rank(name, target, matrices, most)


async def _serve(handle: Any, limits: Any, path: str, reports: TextIO) -> int:
    from jaxinfer.server.engine_service import engine_server

    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with engine_server(handle, limits).listening(path):
        freeze_heap()
        collect_less_often()
        reporting = asyncio.create_task(report_while_running(reports))
        while not ending.is_set():
            if (failure := handle.driver.failure) is not None:
                print_error("serve", f"the engine has failed: {failure}")
                return FAILED
            try:
                await asyncio.wait_for(ending.wait(), _LOOK_EVERY_S)
            except TimeoutError:
                continue
        reporting.cancel()
    return OK


if __name__ == "__main__":
    sys.exit(main())
