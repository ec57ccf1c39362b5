"""The flags of `jaxinfer serve`, under vLLM's names."""

import argparse
import os
import re
from typing import Any

from jaxinfer.cli.flags.connections import add_connection_flags
from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.cores import usable_cores
from jaxinfer.serving.parsers.names import (
    AUTO,
    NONE,
    REASONING_PARSER_NAMES,
    TOOL_PARSER_NAMES,
)

SERVE_DEFAULTS = {
    "max_num_batched_tokens": "8192 on a GPU, 2048 on a CPU",
    "num_decode_steps": "4 for small models, 1 for others",
    "online": "True",
}
"""The engine's defaults that differ here, as --help shows them."""

_BUNDLED_NAME = "jaxinfer"
_CORES_OF_A_FRONT_END = 4
_MOST_FRONT_ENDS = 8


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are about the service and not about its engine."""
    _add_http_flags(parser.add_argument_group("HTTP"))
    add_connection_flags(parser.add_argument_group("connections"))
    _add_answer_flags(parser.add_argument_group("tools and thinking"))
    _add_limit_flags(parser.add_argument_group("limits and shutdown"))
    _add_monitoring_flags(parser.add_argument_group("monitoring"))


def _add_http_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--host", type=_host, default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    group.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="port to listen on; 0 takes a free one (default: 8000)",
    )
    group.add_argument(
        "--uds",
        metavar="PATH",
        help="Unix domain socket to listen at, in place of --host and --port (default: none)",
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="let only requests with this key in; may be repeated (default: all are let in)",
    )
    group.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may call the model; answers bear the first "
        "(default: MODEL as given)",
    )
    group.add_argument(
        "--enable-admin",
        action="store_true",
        help="serve routes that change the engine; needs --api-key",
    )
    group.add_argument(
        "--profiler-dir",
        metavar="DIR",
        help="where /start_profile writes; needs --enable-admin (default: it answers 501)",
    )
    group.add_argument(
        "--enable-tokenizer-info",
        "--enable-tokenizer-info-endpoint",
        action="store_true",
        help="serve /tokenizer_info, which shows the chat template",
    )
    group.add_argument(
        "--page",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="serve a chat page at / (default: True)",
    )
    group.add_argument(
        "-asc",
        "--api-server-count",
        type=positive_integer,
        metavar="COUNT",
        help="number of front-end processes (default: one for every "
        f"{_CORES_OF_A_FRONT_END} cores, at most {_MOST_FRONT_ENDS})",
    )
    group.add_argument(
        "--middleware",
        action="append",
        default=[],
        metavar="IMPORT.PATH",
        help="ASGI middleware of your own, a class or a coroutine function; may be repeated "
        "(default: none)",
    )
    group.add_argument(
        "--config", metavar="FILE", help="YAML with flags; the command line wins (default: none)"
    )


def _add_answer_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let the model decide whether it calls a tool (default: True)",
    )
    group.add_argument(
        "--tool-call-parser",
        choices=(AUTO, NONE, *TOOL_PARSER_NAMES),
        default=AUTO,
        help="how tool calls are read out of answers; auto goes by the chat template "
        "(default: auto)",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=(AUTO, NONE, *REASONING_PARSER_NAMES),
        default=AUTO,
        help="how reasoning is read out of answers; auto goes by the chat template (default: auto)",
    )


def _add_limit_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-waiting-requests",
        type=_not_negative,
        default=1024,
        help="completions that may wait for a slot; more are answered 503 (default: 1024)",
    )
    group.add_argument(
        "--max-undelivered-tokens",
        type=positive_integer,
        default=4096,
        help="tokens that the reader of a stream may be behind before it is aborted "
        "(default: 4096)",
    )
    group.add_argument(
        "--request-timeout",
        type=_seconds,
        default=0.0,
        help="seconds after which a request is aborted; 0 for never (default: 0)",
    )
    group.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        default=30.0,
        help="seconds that SIGTERM lets requests go on; a second signal aborts them (default: 30)",
    )


def _add_monitoring_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--access-log",
        action="store_true",
        help="write a JSON line a request on standard error, without prompts or answers",
    )
    group.add_argument(
        "--metrics-prefix",
        type=_metrics_prefix,
        default="jaxinfer:",
        metavar="PREFIX",
        help="begins the names of metrics; dashboards made for vLLM want vllm: "
        "(default: jaxinfer:)",
    )


def monitoring_settings(arguments: argparse.Namespace, directory: str) -> dict[str, Any]:
    """The monitoring settings of front ends (counts, access log) as JSON values.

    Args:
        arguments: of the command.
        directory: for the counts of this run's front ends; empty.
    """
    return {
        "directory": directory,
        "prefix": arguments.metrics_prefix,
        "access_log": arguments.access_log,
    }


def http_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `ServerSettings` that the flags set, as JSON has them.

    Raises:
        ValueError: --enable-admin without a key, --profiler-dir without --enable-admin, or a model
            that was read as a name of it.
    """
    if arguments.enable_admin and not arguments.api_key:
        raise ValueError("--enable-admin needs --api-key, for its routes change the engine")
    if arguments.profiler_dir is not None and not arguments.enable_admin:
        raise ValueError("--profiler-dir needs --enable-admin, which serves /start_profile")
    directory = arguments.profiler_dir
    _check_names(arguments)
    names = arguments.served_model_name or [getattr(arguments, "model", None) or _BUNDLED_NAME]
    return {
        "served_model_names": names,
        "api_keys": arguments.api_key,
        "body_seconds": arguments.timeout_body,
        "enable_admin": arguments.enable_admin,
        "enable_tokenizer_info": arguments.enable_tokenizer_info,
        "enable_auto_tool_choice": arguments.enable_auto_tool_choice,
        "tool_call_parser": arguments.tool_call_parser,
        "reasoning_parser": arguments.reasoning_parser,
        "page": arguments.page,
        "profile_directory": None if directory is None else os.path.abspath(directory),
    }


def _check_names(arguments: argparse.Namespace) -> None:
    """Refuse names of which the last one was meant as MODEL: --served-model-name takes several."""
    if getattr(arguments, "model", None) is not None or not arguments.served_model_name:
        return
    *others, last = arguments.served_model_name
    if os.path.isdir(last) or (others and "/" in last):
        raise ValueError(
            f"--served-model-name has taken {last} as a name, and there is no MODEL; write MODEL "
            f"before it, or --model {last}"
        )


def default_front_ends() -> int:
    """The number of front ends for this machine's cores."""
    return max(1, min(_MOST_FRONT_ENDS, usable_cores() // _CORES_OF_A_FRONT_END))


def _host(text: str) -> str:
    """An address or a name; Python would take an empty one for all addresses.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    if not re.fullmatch(r"[0-9A-Za-z._:%-]+", text):
        raise argparse.ArgumentTypeError(
            f"expected an address or a name, got {text!r}; 0.0.0.0 listens on all addresses"
        )
    return text


def _port(text: str) -> int:
    number = _not_negative(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return number


def _not_negative(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 1000000, got {text!r}")
    return seconds


def _metrics_prefix(text: str) -> str:
    """A prefix that Prometheus takes.

    Raises:
        argparse.ArgumentTypeError: Prometheus takes no such prefix.
    """
    if text and not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", text):
        raise argparse.ArgumentTypeError(
            f"expected letters, digits, '_' and ':', no digit first, got {text!r}"
        )
    return text
