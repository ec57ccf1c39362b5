"""Measures an OpenAI server from outside: `jaxinfer bench --serve URL`."""

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxinfer.cli.client.server import Target
from jaxinfer.measure.serving.load import Load, prepare_share, run_load
from jaxinfer.measure.serving.report import SLO_NAMES, load_report


def parse_slos(texts: list[str]) -> dict[str, float]:
    """Service level objectives such as "ttft:500", in milliseconds.

    Raises:
        ValueError: another name, or no positive number.
    """
    slos = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            slos[name] = float(value)
        except ValueError:
            slos[name] = 0.0
        if name not in SLO_NAMES or not 0 < slos[name] < float("inf"):
            names = ", ".join(SLO_NAMES)
            raise ValueError(f"--goodput {text!r}: give NAME:MILLISECONDS, NAME one of {names}")
    return slos


def measure_server(
    target: Target, load: Load, *, slos: Mapping[str, float], num_processes: int = 1
) -> dict[str, Any]:
    """Send a load to a server, after one request that must succeed; JSON-like figures.

    Args:
        target: the server.
        load: what to ask.
        slos: as in `load_report`.
        num_processes: of the client.

    Raises:
        ValueError: the server refuses the first request.
        RuntimeError: a process of the client ended before its time.
    """
    first = dataclasses.replace(load, num_prompts=1, max_concurrency=None, seed=load.seed + 1)
    (record,) = asyncio.run(prepare_share(target, first, 0, 1).send(0.0))
    if record.error is not None:
        raise ValueError(f"{target.url} fails at the first request: {record.error}")
    result = run_load(target, load, num_processes)
    asked = dataclasses.asdict(load)
    return {"server": target.url, **asked, **load_report(load, result, slos)}
