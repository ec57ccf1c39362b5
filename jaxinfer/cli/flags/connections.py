"""The flags of `jaxinfer serve` about clients' connections: who is answered, and within what."""

import argparse
import dataclasses
from typing import Any

from jaxinfer.cli.flags.parser import positive_integer
from jaxinfer.server.openai.connections.addresses import is_loopback
from jaxinfer.server.openai.connections.limits import ConnectionLimits

_DEFAULTS = ConnectionLimits()
_BODY_SECONDS = 60.0


def add_connection_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags that are about connections and the names of hosts."""
    group.add_argument(
        "--allowed-hosts",
        type=_names,
        metavar="NAME[,NAME...]",
        help="names besides this machine's own that requests may be for, as the Host and Origin "
        "headers say; * for all (default: none where --host is a loopback address and there is no "
        "--api-key, else all)",
    )
    group.add_argument(
        "--forwarded-allow-ips",
        type=_names,
        default=[],
        metavar="ADDRESS[,ADDRESS...]",
        help="proxies, or networks of these, whose X-Forwarded-For names the client; * for all "
        "(default: none)",
    )
    group.add_argument(
        "--timeout-head",
        type=_positive_seconds,
        default=_DEFAULTS.head_seconds,
        metavar="SECONDS",
        help="for a request's headers to come, or a new connection's first byte (default: "
        f"{_DEFAULTS.head_seconds:g})",
    )
    group.add_argument(
        "--timeout-body",
        type=_positive_seconds,
        default=_BODY_SECONDS,
        metavar="SECONDS",
        help="for a request's body to come, and for a client to read some of an answer that "
        f"waits for it (default: {_BODY_SECONDS:g})",
    )
    group.add_argument(
        "--timeout-keep-alive",
        type=_positive_seconds,
        default=_DEFAULTS.idle_seconds,
        metavar="SECONDS",
        help="that a connection stays open between two requests (default: "
        f"{_DEFAULTS.idle_seconds:g})",
    )
    group.add_argument(
        "--h11-max-incomplete-event-size",
        type=positive_integer,
        default=_DEFAULTS.max_head_bytes,
        metavar="BYTES",
        help=f"most bytes of a request's headers (default: {_DEFAULTS.max_head_bytes})",
    )
    group.add_argument(
        "--h11-max-header-count",
        type=positive_integer,
        default=_DEFAULTS.max_headers,
        metavar="COUNT",
        help=f"most headers of a request (default: {_DEFAULTS.max_headers})",
    )


def connection_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `ConnectionLimits` as JSON has them.

    Raises:
        ValueError: one is out of range, or a proxy is no address.
    """
    limits = ConnectionLimits(
        head_seconds=arguments.timeout_head,
        idle_seconds=arguments.timeout_keep_alive,
        stalled_seconds=arguments.timeout_body,
        max_head_bytes=arguments.h11_max_incomplete_event_size,
        max_headers=arguments.h11_max_header_count,
        trusted_proxies=tuple(arguments.forwarded_allow_ips),
    )
    return dataclasses.asdict(limits)


def allowed_hosts(arguments: argparse.Namespace, address: str) -> list[str]:
    """The names that requests may be for, besides this machine's own.

    Without a key, a page of another site could otherwise reach a server that only this machine
    can: its name may lead to 127.0.0.1 by the time that its script runs.

    Args:
        arguments: of the command.
        address: that the server listens on.
    """
    if arguments.allowed_hosts is not None:
        return arguments.allowed_hosts
    return [] if is_loopback(address) and not arguments.api_key else ["*"]


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names with commas between, got {text!r}")
    return names


def _positive_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text!r}")
    return seconds
