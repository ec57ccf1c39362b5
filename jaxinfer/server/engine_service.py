"""Serves an engine to front ends over a socket; runs in the engine's process of a service."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from jaxinfer.server.service.description import (
    EngineDescription,
    model_directory,
)
from jaxinfer.server.service.engine_server import EngineServer, ServedAdapters
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.server.service.messages import metrics_to_message, pack_head_rows
from jaxinfer.serving.expert_balance import rebalance
from jaxinfer.serving.handle import Handle


def describe(handle: Handle, limits: ServiceLimits) -> EngineDescription:
    """The description of an engine for its front ends."""
    config, loaded = handle.config, handle.loaded
    norm = loaded.replicas[0].runner.wanted_params["model"]["norm"]
    devices = sorted(norm.sharding.device_set, key=lambda device: device.id)
    return EngineDescription(
        config=config,
        directory=model_directory(config),
        max_model_len=loaded.reader.max_model_len,
        max_logprobs=loaded.reader.max_logprobs,
        default_params=loaded.default_params,
        limits=limits,
        device_kind=devices[0].device_kind,
        devices_of_a_replica=len(devices),
        bytes_per_value=norm.dtype.itemsize,
    )


def engine_server(handle: Handle, limits: ServiceLimits) -> EngineServer:
    """A server of an engine, which does not listen yet."""
    loaded = handle.loaded
    calls: dict[str, Callable[..., Any]] = {
        "get_metrics": lambda: metrics_to_message(handle.metrics()),
        "reset_prefix_cache": loaded.engine.reset_prefix_cache,
        "head_rows": lambda token_ids: pack_head_rows(handle.head.read(tuple(token_ids))),
        "rebalance_experts": lambda load: dataclasses.asdict(rebalance(handle, load)),
        "start_profile": handle.profiler.start,
        "stop_profile": handle.profiler.stop,
    }
    return EngineServer(
        handle.driver,
        num_slots=handle.config.max_num_seqs * len(loaded.replicas),
        max_waiting=limits.max_waiting_requests,
        hello=describe(handle, limits).to_message(),
        calls=calls,
        adapters=_served_adapters(handle),
    )


def _served_adapters(handle: Handle) -> ServedAdapters:
    adapters = handle.arguments.adapters

    def load(name: str, directory: str, *, replaces: bool) -> None:
        """Load one, whose arrays stay here: an answer to a front end has none."""
        adapters.load(name, directory, None, replaces=replaces)

    calls = {
        "load_adapter": functools.partial(load, replaces=False),
        "update_adapter": functools.partial(load, replaces=True),
        "unload_adapter": adapters.unload,
    }
    return ServedAdapters(lambda: adapters.names, adapters.find, calls)
