"""The flags of `jaxinfer serve`, under vLLM's names, and the settings that they give.

Most are fields of `ServerSettings`, `ConnectionLimits` and `ServiceLimits`, where their defaults,
texts and checks are.
"""

import argparse
import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxinfer.cli.flags.fields import add_field_flag, flag_of, given
from jaxinfer.cli.flags.parser import json_object, positive_integer
from jaxinfer.cores import usable_cores
from jaxinfer.server.openai.connections.addresses import is_loopback
from jaxinfer.server.openai.connections.limits import ConnectionLimits
from jaxinfer.server.openai.settings import ServerSettings
from jaxinfer.server.service.limits import ServiceLimits
from jaxinfer.serving.parsers.names import AUTO, NONE, REASONING_PARSER_NAMES, TOOL_PARSER_NAMES

SERVE_DEFAULTS = {
    "max_num_batched_tokens": "8192 on a GPU, 2048 on a CPU",
    "num_decode_steps": "4 where few rows read few weights, 1 elsewhere",
    "online": "True",
}
"""The engine's defaults that differ here, as --help shows them."""

_BUNDLED_NAME = "jaxinfer"
_CORES_OF_A_FRONT_END = 4
_MOST_FRONT_ENDS = 8

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "served_model_names": ("--served-model-name",),
    "api_keys": ("--api-key",),
    "enable_tokenizer_info": ("--enable-tokenizer-info", "--enable-tokenizer-info-endpoint"),
    "profile_directory": ("--profiler-dir",),
    "body_seconds": ("--timeout-body",),
    "stalled_seconds": ("--timeout-body",),
    "head_seconds": ("--timeout-head",),
    "idle_seconds": ("--timeout-keep-alive",),
    "max_head_bytes": ("--h11-max-incomplete-event-size",),
    "max_headers": ("--h11-max-header-count",),
    "trusted_proxies": ("--forwarded-allow-ips",),
}
"""vLLM's names of fields, where they are not the field's."""

_SHOWN: Mapping[str, str] = {
    "served_model_names": "MODEL as given",
    "api_keys": "all are let in",
    "allowed_hosts": "none where --host is a loopback address and there is no --api-key, else all",
    "profile_directory": "it answers 501",
    "trusted_proxies": "none",
}
"""Defaults, where --help can't show the field's."""


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are about the service and not about its engine."""
    http = parser.add_argument_group("HTTP")
    http.add_argument(
        "--host", type=_host, default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    http.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="port to listen on; 0 takes a free one (default: 8000)",
    )
    http.add_argument(
        "--uds",
        metavar="PATH",
        help="Unix domain socket to listen at, in place of --host and --port (default: none)",
    )
    _add(http, ServerSettings, "served_model_names", nargs="+", metavar="NAME")
    _add(http, ServerSettings, "api_keys", action="append", metavar="KEY")
    _add(http, ServerSettings, "enable_admin", action="store_true")
    _add(http, ServerSettings, "profile_directory", metavar="DIR")
    _add(http, ServerSettings, "enable_tokenizer_info", action="store_true")
    _add(http, ServerSettings, "page")
    http.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        type=_adapter,
        default=[],
        metavar="NAME=PATH",
        help="LoRA adapters to load at start, which requests name as their model; needs "
        "--enable-lora (default: none)",
    )
    http.add_argument(
        "-asc",
        "--api-server-count",
        type=positive_integer,
        metavar="COUNT",
        help="number of front-end processes (default: one for every "
        f"{_CORES_OF_A_FRONT_END} cores, at most {_MOST_FRONT_ENDS})",
    )
    http.add_argument(
        "--middleware",
        action="append",
        default=[],
        metavar="IMPORT.PATH",
        help="ASGI middleware of your own, a class or a coroutine function; may be repeated "
        "(default: none)",
    )
    http.add_argument(
        "--config", metavar="FILE", help="YAML with flags; the command line wins (default: none)"
    )
    group = parser.add_argument_group("connections")
    _add(group, ServerSettings, "allowed_hosts", type=_names, metavar="NAME[,NAME...]")
    _add(group, ConnectionLimits, "trusted_proxies", type=_names, metavar="ADDRESS[,ADDRESS...]")
    for name in ("head_seconds", "idle_seconds"):
        _add(group, ConnectionLimits, name, type=float, metavar="SECONDS")
    _add(group, ServerSettings, "body_seconds", type=float, metavar="SECONDS")
    _add(group, ConnectionLimits, "max_head_bytes", type=int, metavar="BYTES")
    _add(group, ConnectionLimits, "max_headers", type=int, metavar="COUNT")
    group = parser.add_argument_group("tools and thinking")
    _add(group, ServerSettings, "enable_auto_tool_choice")
    tools, reasoning = (AUTO, NONE, *TOOL_PARSER_NAMES), (AUTO, NONE, *REASONING_PARSER_NAMES)
    _add(group, ServerSettings, "tool_call_parser", choices=tools)
    _add(group, ServerSettings, "reasoning_parser", choices=reasoning)
    group = parser.add_argument_group("limits and shutdown")
    for field in dataclasses.fields(ServiceLimits):
        _add(group, ServiceLimits, field.name)
    group.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        default=30.0,
        help="seconds for requests to end after SIGTERM; a second signal aborts them (default: 30)",
    )
    group = parser.add_argument_group("monitoring")
    group.add_argument(
        "--access-log",
        action="store_true",
        help="write one JSON line per request to standard error, without prompts or answers",
    )
    group.add_argument(
        "--metrics-prefix",
        type=_metrics_prefix,
        default="jaxinfer:",
        metavar="PREFIX",
        help="prefix of metric names; dashboards made for vLLM need vllm: (default: jaxinfer:)",
    )


def service_settings(arguments: argparse.Namespace, address: str) -> dict[str, dict[str, Any]]:
    """The flags' fields of `ServerSettings`, `ConnectionLimits` and `ServiceLimits`, as JSON.

    Args:
        address: that the server listens on. Without a key, a page of another site could reach a
            server that only this machine can: its name may lead to 127.0.0.1 by the time that its
            script runs.

    Returns:
        The fields, under "http", "connections" and "limits".

    Raises:
        TypeError, ValueError: one is out of range, contradicts another, or is a model that was read
            as a name of it; names the flag.
    """
    _check_names(arguments)
    http = _given(arguments, ServerSettings)
    names = [getattr(arguments, "model", None) or _BUNDLED_NAME]
    is_private = is_loopback(address) and "api_keys" not in http
    http = {"served_model_names": names, "allowed_hosts": [] if is_private else ["*"]} | http
    _check_adapters(arguments.lora_modules, http["served_model_names"])
    if (directory := http.get("profile_directory")) is not None:
        http["profile_directory"] = os.path.abspath(directory)
    connections = _given(arguments, ConnectionLimits)
    if "body_seconds" in http:
        connections["stalled_seconds"] = http["body_seconds"]
    limits = _given(arguments, ServiceLimits)
    try:
        ServerSettings(**http)
        ConnectionLimits(**connections)
        ServiceLimits(**limits)
    except (TypeError, ValueError) as error:
        raise ValueError(_NAME.sub(lambda found: _flag(found[0]), str(error))) from None
    return {"http": http, "connections": connections, "limits": limits}


def default_front_ends() -> int:
    """The number of front ends for this machine's cores."""
    return max(1, min(_MOST_FRONT_ENDS, usable_cores() // _CORES_OF_A_FRONT_END))


_FIELDS = {
    field.name
    for kind in (ServerSettings, ConnectionLimits, ServiceLimits)
    for field in dataclasses.fields(kind)
}
_NAME = re.compile(rf"\b({'|'.join(name for name in _FIELDS if '_' in name)})\b")


def _flag(name: str) -> str:
    return _FLAGS.get(name, (flag_of(name),))[0]


def _add(group: argparse._ArgumentGroup, kind: Any, name: str, **reading: Any) -> None:
    flags, shown = _FLAGS.get(name, ()), _SHOWN.get(name)
    if reading.get("action") == "store_true":
        shown = ""
    add_field_flag(group, kind, name, *flags, flagged=(), default=shown, reading=reading)


def _given(arguments: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """The fields of a dataclass that the user gave."""
    return given(arguments, frozenset(field.name for field in dataclasses.fields(kind)))


def _check_names(arguments: argparse.Namespace) -> None:
    """Refuse names if the last was meant as MODEL: --served-model-name takes several."""
    names = getattr(arguments, "served_model_names", None)
    if getattr(arguments, "model", None) is not None or not names:
        return
    *others, last = names
    if os.path.isdir(last) or (others and "/" in last):
        raise ValueError(
            f"--served-model-name has taken {last} as a name, and there is no MODEL; write MODEL "
            f"before it, or --model {last}"
        )


def _check_adapters(adapters: Sequence[tuple[str, str]], names: Sequence[str]) -> None:
    """Refuse a name that two adapters have, or that the model is served by."""
    taken = {*names}
    for name, _ in adapters:
        if name in taken:
            owner = "the model" if name in names else "another adapter"
            raise ValueError(
                f"--lora-modules: the name {name} is that of {owner}; give the adapter its own"
            )
        taken.add(name)


def _adapter(text: str) -> tuple[str, str]:
    """A name and a directory: NAME=PATH, or vLLM's JSON."""
    name: Any
    path: Any
    name, _, path = text.partition("=")
    if text.startswith("{"):
        values = json_object(text)
        name, path = values.get("name"), values.get("path")
    if not all(isinstance(each, str) and each for each in (name, path)):
        raise argparse.ArgumentTypeError(
            f'expected NAME=PATH or {{"name": ..., "path": ...}}, got {text!r}'
        )
    return name, path


def _host(text: str) -> str:
    """An address or a name; Python would take an empty one for all addresses."""
    if not re.fullmatch(r"[0-9A-Za-z._:%-]+", text):
        raise argparse.ArgumentTypeError(
            f"expected an address or a name, got {text!r}; 0.0.0.0 listens on all addresses"
        )
    return text


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names with commas between, got {text!r}")
    return names


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 1000000, got {text!r}")
    return seconds


def _metrics_prefix(text: str) -> str:
    """A prefix that Prometheus takes."""
    if text and not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text):
        raise argparse.ArgumentTypeError(
            f"expected letters, digits, '_' and ':', no digit first, got {text!r}"
        )
    return text
