"""The HTTP application of a front end, from settings that came as JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxinfer.cli.service.own_middleware import add_middleware, load_middleware
from jaxinfer.cli.service.step_floors import step_floors
from jaxinfer.server.app import create_app
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.service.remote_llm import RemoteLLM
from jaxinfer.server.telemetry.access_log import AccessLog, App
from jaxinfer.server.telemetry.telemetry import Telemetry


def make_app(
    llm: RemoteLLM,
    settings: Mapping[str, Any],
    monitoring: Mapping[str, Any],
    middleware: Sequence[str] = (),
) -> App:
    """The ASGI application in front of an engine.

    Args:
        settings: fields of `ServerSettings`; lists stand for tuples.
        monitoring: `directory` for the counts of all front ends, `prefix` of metrics, and whether
            there is an `access_log`.
        middleware: import paths of the operator's own.

    Raises:
        ValueError: a setting is out of its range, or there is no such middleware.
    """
    plain: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()
    }
    of_app, described = ServerSettings(**plain), llm.description
    telemetry = Telemetry(
        of_app.served_model_names[0],
        prefix=monitoring["prefix"],
        directory=Path(monitoring["directory"]),
        floors=step_floors(
            llm.model_config,
            described.device_kind,
            bytes_per_value=described.bytes_per_value,
            kv_cache_dtype=described.config.kv_cache_dtype,
            num_devices=described.devices_of_a_replica,
        ),
    )
    app = create_app(llm, of_app, telemetry=telemetry)
    add_middleware(app, load_middleware(middleware))
    return AccessLog(app) if monitoring["access_log"] else app
