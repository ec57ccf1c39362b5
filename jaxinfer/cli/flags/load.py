"""The flags of `jaxinfer bench --serve`: the load on a server, its requests and their rate."""

import argparse
from typing import Any

from jaxinfer.cli.client.load import Load
from jaxinfer.cli.client.load_report import measure_server, parse_slos
from jaxinfer.cli.flags.fields import add_field_flag
from jaxinfer.cli.flags.parser import given, positive_integer
from jaxinfer.cli.flags.server import SERVER_FIELDS, add_server_flags, chosen_server

_FIELDS = ("num_prompts", "input_len", "output_len", "vocab_size", "max_concurrency")
_FIELDS += ("request_rate",)
LOAD_FIELDS = SERVER_FIELDS | {*_FIELDS, "client_processes", "goodput"}


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags; without --serve none of them may be given."""
    unset: Any = argparse.SUPPRESS
    group = parser.add_argument_group("load on a server, with --serve")
    add_server_flags(group)
    for name in _FIELDS:
        reading = {"type": _rate if name == "request_rate" else positive_integer}
        add_field_flag(group, Load, name, flagged=LOAD_FIELDS, reading=reading)
    group.add_argument(
        "--client-processes",
        type=positive_integer,
        default=unset,
        help="processes that send the requests (default: 1)",
    )
    group.add_argument(
        "--goodput",
        nargs="+",
        metavar="NAME:MS",
        default=unset,
        help="also count requests that meet ttft:MS, tpot:MS and e2el:MS (default: none)",
    )


def load_arguments(namespace: argparse.Namespace) -> dict[str, object]:
    """The flags of a load that the user gave."""
    return given(namespace, LOAD_FIELDS)


def load_report(namespace: argparse.Namespace) -> dict[str, Any]:
    """Send the load that the flags ask for; the figures.

    Raises:
        ValueError: a flag is wrong, or the server refuses.
        OSError: the server can't be reached.
    """
    arguments: dict[str, Any] = load_arguments(namespace)
    slos = parse_slos(arguments.get("goodput", []))
    target, model = chosen_server(namespace.serve, namespace)
    own = {name: arguments[name] for name in _FIELDS if name in arguments}
    load = Load(model=model, seed=getattr(namespace, "seed", 0), **own)
    num_processes = arguments.get("client_processes", 1)
    return measure_server(target, load, slos=slos, num_processes=num_processes)


def _rate(text: str) -> float | None:
    """Arrivals a second; None for "inf".

    Raises:
        argparse.ArgumentTypeError: it is no positive number.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number or inf, got {text!r}")
    return None if rate == float("inf") else rate
