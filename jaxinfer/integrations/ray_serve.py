"""jaxinfer's server as a Ray Serve application: ``serve.run(app("Qwen/Qwen3-0.6B"))``."""

import asyncio
import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxinfer.checks import check_integer, check_real
from jaxinfer.config import EngineConfig
from jaxinfer.integrations.ray_metrics import RayMetrics
from jaxinfer.optional import import_optional
from jaxinfer.planning.blocks import COMMANDS_ALLOCATOR_SHARE
from jaxinfer.server.openai.settings import ServerSettings

serve = import_optional("ray.serve", needed_by=__name__, install="jaxinfer[ray]")

_MOST_REPLICAS = 10_000
_KEY_VARIABLE = "JAXINFER_API_KEY"
_BUNDLED_NAME = "jaxinfer"
_REPORT_EVERY_S = 5.0
_HEALTH_CHECK_TIMEOUT_S = 120.0  # the engine's thread may hold the interpreter while it traces


class Replica:
    """An engine and the HTTP application in front of it, in the process of a Ray actor."""

    async def __init__(self, engine_args: Mapping[str, Any], settings: ServerSettings) -> None:
        from jaxinfer.serving.async_llm import AsyncLLM  # JAX, which a head node does not need

        self._settings = settings
        self._llm = await asyncio.to_thread(AsyncLLM, **engine_args)
        self._reporting = asyncio.create_task(self._report())

    def __serve_build_asgi_app__(self) -> Any:
        """The ASGI application; Ray calls this when the engine is there."""
        from jaxinfer.server.app import create_app

        return create_app(self._llm, self._settings)

    async def check_health(self) -> None:
        """Return if the engine takes requests; what it raises makes Ray start another replica."""
        await self._llm.check_health()

    async def _report(self) -> None:
        """Hand the engine's counts to Ray as long as it lives."""
        metrics = RayMetrics(importlib.import_module("ray.serve.metrics"))
        while self._llm.is_running:
            metrics.update(await self._llm.get_metrics())
            await asyncio.sleep(_REPORT_EVERY_S)

    async def __del__(self) -> None:
        """End the engine; Ray calls this when the requests have ended, or their time is over."""
        if (llm := getattr(self, "_llm", None)) is not None:  # its start may have failed
            self._reporting.cancel()
            await asyncio.to_thread(llm.shutdown)


def app(
    model: str | Path | None = None,
    *,
    min_replicas: int = 1,
    max_replicas: int | None = None,
    target_ongoing_requests: int | None = None,
    num_gpus: float | None = None,
    shutdown_timeout: float = 60.0,
    settings: ServerSettings | None = None,
    ray_actor_options: Mapping[str, Any] | None = None,
    **engine_args: Any,
) -> Any:
    """A Ray Serve application that serves a model as OpenAI's API, by replicas.

    Each replica is an actor with an engine of its own. Ray's proxies take the HTTP requests and
    pass each to the less busy of two replicas.

    Args:
        model: a directory that every node has, a hub id, or "bundled-experts"; None is the bundled
            model.
        min_replicas: replicas that always run.
        max_replicas: replicas that run under load; None is `min_replicas`.
        target_ongoing_requests: requests a replica by which Ray chooses how many run; None is
            `max_num_seqs`, a full batch.
        num_gpus: GPUs of a replica; None is one for each of its devices,
            `tensor_parallel_size` x `pipeline_parallel_size` x `context_parallel_size` x
            `data_parallel_size`. With 0 it runs
            on the CPU.
        shutdown_timeout: seconds that running requests have when a replica is to end.
        settings: of the HTTP application, such as `api_keys`; None is the defaults, with the
            model's name.
        ray_actor_options: of the replicas' actors, such as `num_cpus`; `runtime_env` is added to.
        engine_args: fields of `EngineConfig`; `online` is True unless given.

    Returns:
        What `serve.run` and `serve deploy` take.

    Raises:
        TypeError, ValueError: an argument is unknown, out of range or contradicts another.
        ImportError: Ray, or what the server needs, is not installed.
    """
    engine = {"online": True, "show_progress": False, "model": model, **engine_args}
    config = EngineConfig.from_keywords(engine, owner="app")
    num_devices = config.tensor_parallel_size * config.context_parallel_size
    num_devices *= config.pipeline_parallel_size * config.data_parallel_size
    low = check_integer("min_replicas", min_replicas, 1, _MOST_REPLICAS)
    high = low if max_replicas is None else max_replicas
    check_integer("max_replicas", high, low, _MOST_REPLICAS)
    check_real("shutdown_timeout", shutdown_timeout, 0.0, 1e6)
    gpus = check_real("num_gpus", num_devices if num_gpus is None else num_gpus, 0.0, 1e6)
    slots = config.max_num_seqs * config.data_parallel_size
    target = slots if target_ongoing_requests is None else target_ongoing_requests
    check_integer("target_ongoing_requests", target, 1, 2**31 - 1)
    if settings is None:
        settings = ServerSettings(served_model_names=_names(model))
    scale: dict[str, Any] = {"num_replicas": low}
    if high > low:
        autoscaling = {"min_replicas": low, "max_replicas": high, "target_ongoing_requests": target}
        scale = {"autoscaling_config": autoscaling}
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name="jaxinfer",
        # A freed slot finds the next request in the engine; others wait where any replica is open
        # to them.
        max_ongoing_requests=max(slots, target) + max(1, slots // 4),
        ray_actor_options=_actor_options(gpus, ray_actor_options or {}),
        graceful_shutdown_timeout_s=shutdown_timeout,
        health_check_timeout_s=_HEALTH_CHECK_TIMEOUT_S,
        **scale,
    )
    return deployment.bind(engine, settings)


def build(args: Mapping[str, Any]) -> Any:
    """`app` for files that Ray reads: ``import_path: jaxinfer.integrations.ray_serve:build``.

    Where the environment has JAXINFER_API_KEY, requests need that key.

    Args:
        args: keyword arguments of `app`; `settings` is an object of `ServerSettings`' fields.

    Raises:
        TypeError, ValueError: as `app`.
    """
    own = dict(args)
    fields: dict[str, Any] = {"served_model_names": _names(own.get("model"))}
    fields |= own.pop("settings", {})
    if key := os.environ.get(_KEY_VARIABLE):
        fields.setdefault("api_keys", (key,))
    plain: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()
    }
    return app(**own, settings=ServerSettings(**plain))


def _names(model: str | Path | None) -> tuple[str, ...]:
    return (_BUNDLED_NAME if model is None else str(model),)


def _actor_options(num_gpus: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the actors: their GPUs, and the variables that JAX reads when it starts."""
    environment = dict(given.get("runtime_env") or {})
    variables = {"XLA_CLIENT_MEM_FRACTION": str(COMMANDS_ALLOCATOR_SHARE)}
    if num_gpus == 0:
        variables = {"JAX_PLATFORMS": "cpu"}
    environment["env_vars"] = variables | dict(environment.get("env_vars") or {})
    return {"num_gpus": num_gpus, **given, "runtime_env": environment}
